//! The name of a tensor: where it is in its module.

/// The fields from the module to the tensor that is visited.
#[derive(Debug, Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    pub(crate) fn enter(&mut self, field: &str) {
        self.0.push(field.to_owned());
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    /// The fields, joined by dots: `hidden.weight`.
    pub(crate) fn name(&self) -> String {
        self.0.join(".")
    }
}
