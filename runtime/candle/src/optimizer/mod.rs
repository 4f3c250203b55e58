//! Optimizers whose state travels: what candle's own keep to themselves.

mod adamw;
mod sgd;
#[cfg(test)]
mod tests;

pub use adamw::AdamW;
pub use sgd::{Sgd, SgdConfig};

use crate::{CandleVariables, read, write};
use candle_core::{Result, Var};
use slowmo::TensorError;

/// A buffer beside each variable, of its shape and on its device, zero at first.
fn zeros(variables: &CandleVariables) -> Result<Vec<Var>> {
    let zeros = |(_, variable): (&str, &Var)| {
        Var::zeros(variable.shape(), variable.dtype(), variable.device())
    };
    variables.iter().map(zeros).collect()
}

/// Variables that have no names get their number; ten digits keep them in order.
fn numbered(variables: Vec<Var>) -> Result<CandleVariables> {
    let floats = variables.into_iter().filter(|var| var.dtype().is_float());
    let list = floats
        .enumerate()
        .map(|(number, variable)| (format!("{number:010}"), variable));
    let variables = CandleVariables::new(list).map_err(candle_core::Error::wrap)?;
    Ok(variables.unwatched())
}

/// Reads one buffer of each variable, under the variable's name and that of the buffer.
fn read_all(
    variables: &CandleVariables,
    buffers: &[Var],
    kind: &str,
    visit: &mut dyn FnMut(&str, &[f32]),
) -> std::result::Result<(), TensorError> {
    let mut list = variables.iter().zip(buffers);
    list.try_for_each(|((name, _), buffer)| read(&format!("{name}.{kind}"), buffer, visit))
}

/// The same for writing.
fn write_all(
    variables: &CandleVariables,
    buffers: &[Var],
    kind: &str,
    visit: &mut dyn FnMut(&str, &mut [f32]),
) -> std::result::Result<(), TensorError> {
    let mut list = variables.iter().zip(buffers);
    list.try_for_each(|((name, _), buffer)| write(&format!("{name}.{kind}"), buffer, visit))
}

/// Number of values in all variables.
fn elements(variables: &CandleVariables) -> usize {
    variables.iter().map(|(_, var)| var.elem_count()).sum()
}

/// Names and dimensions of one buffer of each variable.
fn shapes<'a>(
    variables: &'a CandleVariables,
    kind: &'a str,
) -> impl Iterator<Item = (String, Vec<usize>)> + 'a {
    variables
        .iter()
        .map(move |(name, var)| (format!("{name}.{kind}"), var.dims().to_vec()))
}
