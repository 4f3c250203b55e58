//! The name of a checkpoint: its folder, ordered by age.

use slowmo_protocol::ident::Lineage;

/// A checkpoint's name. Names are ordered by age: every bootstrap takes a run number above all that
/// it finds in the folder, so its checkpoints are newer than the one it continues from and than
/// those it leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// Number of the bootstrap among those that used the folder, from 0.
    pub run: u32,
    /// The inner step that follows the checkpoint.
    pub step: u64,
    /// The model history.
    pub lineage: Lineage,
}

impl Name {
    /// Parses a checkpoint's name; `None` if the text is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (run, rest) = text.strip_prefix("run-")?.split_once("-step-")?;
        let (step, lineage) = rest.split_once('-')?;
        let name = Self {
            run: run.parse().ok()?,
            step: step.parse().ok()?,
            lineage: Lineage(u128::from_str_radix(lineage, 16).ok()?),
        };
        (name.to_string() == text).then_some(name)
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "run-{:04}-step-{:012}-{:032x}",
            self.run, self.step, self.lineage.0
        )
    }
}
