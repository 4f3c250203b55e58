//! Optimizers whose state travels: what candle's own keep to themselves.

mod adamw;
mod sgd;
#[cfg(test)]
mod tests;

pub use adamw::AdamW;
pub use sgd::{Sgd, SgdConfig};

use crate::{CandleVariables, lend, lend_mut};
use candle_core::{DType, Result, Tensor, Var};
use slowmo::{TensorError, Values, ValuesMut};

/// A buffer beside each variable, of its shape and on its device, zero at first. Float32 whatever
/// the variable is: a mean over a thousand steps moves by less than a bfloat16 holds.
fn zeros(variables: &CandleVariables) -> Result<Vec<Var>> {
    let zeros =
        |(_, variable): (&str, &Var)| Var::zeros(variable.shape(), DType::F32, variable.device());
    variables.iter().map(zeros).collect()
}

/// A tensor as float32, in which optimizers compute.
fn wide(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::F32)
}

/// Sets a variable to new values, rounded to its type.
fn set(variable: &Var, values: &Tensor) -> Result<()> {
    variable.set(&values.to_dtype(variable.dtype())?)
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

/// Lends one buffer of each variable, under the variable's name and that of the buffer.
fn lend_all(
    variables: &CandleVariables,
    buffers: &[Var],
    kind: &str,
    visit: &mut dyn FnMut(&str, Values<'_>),
) -> std::result::Result<(), TensorError> {
    let mut list = variables.iter().zip(buffers);
    list.try_for_each(|((name, _), buffer)| lend(&format!("{name}.{kind}"), buffer, visit))
}

/// The same for writing.
fn lend_all_mut(
    variables: &CandleVariables,
    buffers: &[Var],
    kind: &str,
    visit: &mut dyn FnMut(&str, ValuesMut<'_>),
) -> std::result::Result<(), TensorError> {
    let mut list = variables.iter().zip(buffers);
    list.try_for_each(|((name, _), buffer)| lend_mut(&format!("{name}.{kind}"), buffer, visit))
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
