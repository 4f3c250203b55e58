//! [`Tensors`] for plain slices and lists of them. They are here because the trait and its
//! implementations for types of the standard library must be in one crate. Lists name their tensors
//! `tensor 0`, `tensor 1`, …

use super::{OnGpu, TensorError, Tensors, Values, ValuesMut};
use std::fmt::Write as _;

/// The callback that `read` calls for every tensor.
type Read<'a> = &'a mut dyn FnMut(&str, &[f32]);
/// The callback that `write` calls for every tensor.
type Write<'a> = &'a mut dyn FnMut(&str, &mut [f32]);

/// No tensors: for workers that only take part in the calls.
impl Tensors for () {
    fn read(&self, _visit: Read<'_>) -> Result<(), TensorError> {
        Ok(())
    }
    fn write(&mut self, _visit: Write<'_>) -> Result<(), TensorError> {
        Ok(())
    }
}

/// Tensors behind a mutable reference.
impl<T: Tensors + ?Sized> Tensors for &mut T {
    fn read(&self, visit: Read<'_>) -> Result<(), TensorError> {
        (**self).read(visit)
    }
    fn write(&mut self, visit: Write<'_>) -> Result<(), TensorError> {
        (**self).write(visit)
    }
    fn elements(&self) -> Result<usize, TensorError> {
        (**self).elements()
    }
    fn shapes(&self) -> Result<Vec<(String, Vec<usize>)>, TensorError> {
        (**self).shapes()
    }
    fn lend(&self, visit: &mut dyn FnMut(&str, Values<'_>)) -> Result<(), TensorError> {
        (**self).lend(visit)
    }
    fn lend_mut(&mut self, visit: &mut dyn FnMut(&str, ValuesMut<'_>)) -> Result<(), TensorError> {
        (**self).lend_mut(visit)
    }
    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        (**self).on_gpu()
    }
}

/// One tensor.
impl Tensors for [f32] {
    fn read(&self, visit: Read<'_>) -> Result<(), TensorError> {
        read_list([self].into_iter(), visit)
    }
    fn write(&mut self, visit: Write<'_>) -> Result<(), TensorError> {
        write_list([self].into_iter(), visit)
    }
    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.len())
    }
}

/// A list of tensors.
impl Tensors for [Vec<f32>] {
    fn read(&self, visit: Read<'_>) -> Result<(), TensorError> {
        read_list(self.iter().map(Vec::as_slice), visit)
    }
    fn write(&mut self, visit: Write<'_>) -> Result<(), TensorError> {
        write_list(self.iter_mut().map(Vec::as_mut_slice), visit)
    }
    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.iter().map(Vec::len).sum())
    }
}

/// A list of borrowed tensors.
impl Tensors for [&mut [f32]] {
    fn read(&self, visit: Read<'_>) -> Result<(), TensorError> {
        read_list(self.iter().map(|values| &**values), visit)
    }
    fn write(&mut self, visit: Write<'_>) -> Result<(), TensorError> {
        write_list(self.iter_mut().map(|values| &mut **values), visit)
    }
    fn elements(&self) -> Result<usize, TensorError> {
        Ok(self.iter().map(|values| values.len()).sum())
    }
}

/// Implements [`Tensors`] for an owning type by delegating to its slice.
macro_rules! as_slice {
    ($([$($generics:tt)*] $owner:ty => $slice:ty);+ $(;)?) => {
        $(impl<$($generics)*> Tensors for $owner {
            fn read(&self, visit: Read<'_>) -> Result<(), TensorError> {
                <$slice as Tensors>::read(self, visit)
            }
            fn write(&mut self, visit: Write<'_>) -> Result<(), TensorError> {
                <$slice as Tensors>::write(self, visit)
            }
            fn elements(&self) -> Result<usize, TensorError> {
                <$slice as Tensors>::elements(self)
            }
        })+
    };
}

as_slice! {
    [] Vec<f32> => [f32];
    [const N: usize] [f32; N] => [f32];
    [] Vec<Vec<f32>> => [Vec<f32>];
    [] Vec<&mut [f32]> => [&mut [f32]];
    [const N: usize] [&mut [f32]; N] => [&mut [f32]];
}

fn read_list<'a>(
    list: impl Iterator<Item = &'a [f32]>,
    visit: Read<'_>,
) -> Result<(), TensorError> {
    let mut name = Name::default();
    for (index, values) in list.enumerate() {
        visit(name.of(index), values);
    }
    Ok(())
}

fn write_list<'a>(
    list: impl Iterator<Item = &'a mut [f32]>,
    visit: Write<'_>,
) -> Result<(), TensorError> {
    let mut name = Name::default();
    for (index, values) in list.enumerate() {
        visit(name.of(index), values);
    }
    Ok(())
}

/// Names of a list's tensors, built one after another in one allocation, because lists are visited
/// at every step.
#[derive(Default)]
struct Name(String);

impl Name {
    fn of(&mut self, index: usize) -> &str {
        self.0.clear();
        // Writing to a string does not fail.
        _ = write!(self.0, "tensor {index}");
        &self.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names<T: Tensors + ?Sized>(tensors: &mut T) -> Vec<(String, Vec<f32>)> {
        tensors
            .write(&mut |_, values| values.iter_mut().for_each(|value| *value += 1.0))
            .unwrap();
        let mut seen = Vec::new();
        tensors
            .read(&mut |name, values| seen.push((name.to_owned(), values.to_vec())))
            .unwrap();
        seen
    }

    #[test]
    fn every_kind_of_list_is_visited_in_order() {
        let one = vec![("tensor 0".to_owned(), vec![1.0, 2.0])];
        let two = vec![
            ("tensor 0".to_owned(), vec![1.0, 2.0]),
            ("tensor 1".to_owned(), vec![]),
        ];
        assert_eq!(names(&mut ()), []);
        assert_eq!(names(&mut [0.0, 1.0]), one);
        assert_eq!(names([0.0, 1.0].as_mut_slice()), one);
        assert_eq!(names(&mut vec![0.0, 1.0]), one);
        assert_eq!(names(&mut vec![vec![0.0, 1.0], vec![]]), two);
        assert_eq!(names([vec![0.0, 1.0], vec![]].as_mut_slice()), two);
        let mut first = [0.0, 1.0];
        let mut second = [];
        assert_eq!(names(&mut [&mut first[..], &mut second[..]]), two);
        assert_eq!(first, [1.0, 2.0]);
        let list: &mut dyn Tensors = &mut vec![&mut first[..]];
        assert_eq!(names(list), [("tensor 0".to_owned(), vec![2.0, 3.0])]);
    }
}
