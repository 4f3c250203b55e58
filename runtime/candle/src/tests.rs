//! A small model: order, writing in place, missing gradients, everything that is refused.
#![allow(clippy::unwrap_used)]

use crate::{CandleGradients, CandleModel, CandleVariables};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{BatchNormConfig, Module, VarBuilder, VarMap, batch_norm};
use slowmo::internal::tensors::flat::{digest, elements, freeze, restore};
use slowmo::{Half, TensorError, Tensors, Values};
use std::sync::{Arc, Mutex};

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn names(tensors: &dyn Tensors) -> Vec<String> {
    let mut names = Vec::new();
    tensors
        .read(&mut |name, _| names.push(name.to_owned()))
        .unwrap();
    names
}

#[test]
fn variables_are_ordered_by_name_and_written_in_place() {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let layers: Vec<_> = ["b", "a"]
        .map(|name| candle_nn::linear(3, 3, builder.pp(name)).unwrap())
        .into();
    let mut variables = CandleVariables::from_var_map(&map).unwrap();
    assert_eq!(
        names(&variables),
        ["a.bias", "a.weight", "b.bias", "b.weight"]
    );
    assert_eq!(
        (elements(&variables).unwrap(), variables.to_vars().len()),
        (24, 4)
    );

    let mut flat = vec![0.0; 24];
    freeze(&variables, &mut flat).unwrap();
    assert_eq!(flat[3..12], values(layers[1].weight()));
    let before = digest(&variables).unwrap();
    let input = Tensor::ones((1, 3), DType::F32, &Device::Cpu).unwrap();
    flat.fill(0.5);
    restore(&flat, &mut variables).unwrap();
    assert_eq!(
        values(&layers[0].forward(&input).unwrap()),
        [2.0; 3],
        "the model sees what was written"
    );
    assert_ne!(digest(&variables).unwrap(), before);
}

#[test]
fn gradients_follow_the_variables_and_missing_ones_are_zeros() {
    let variable = |data: &[f32]| Var::from_slice(data, data.len(), &Device::Cpu).unwrap();
    let used = variable(&[1.0, 2.0]);
    let unused = variable(&[3.0]);
    let weight = Var::from_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0], (3, 2), &Device::Cpu).unwrap();
    let list = [
        ("z".to_owned(), used.clone()),
        ("a".to_owned(), unused.clone()),
        ("m".to_owned(), weight.clone()),
    ];
    let variables = CandleVariables::new(list).unwrap();
    let through = weight.t().unwrap().sum(1).unwrap();
    let loss = (used.sqr().unwrap() + through).unwrap().sum_all().unwrap();
    let mut store = loss.backward().unwrap();

    let mut gradients = CandleGradients::new(&variables, &mut store);
    assert_eq!(names(&gradients), ["a", "m", "z"]);
    let mut flat = vec![9.0; 9];
    freeze(&gradients, &mut flat).unwrap();
    assert_eq!(flat, [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0]);
    let counted: Vec<f32> = (0u8..9).map(f32::from).collect();
    restore(&counted, &mut gradients).unwrap();
    assert_eq!(values(store.get(&unused).unwrap()), [0.0]);
    assert_eq!(values(store.get(&weight).unwrap()), counted[1..7]);
    assert_eq!(values(store.get(&used).unwrap()), [7.0, 8.0]);
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the log of `act`.
fn logged(act: impl FnOnce()) -> String {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    tracing::subscriber::with_default(lines.finish(), act);
    let bytes = log.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_variable_that_never_gets_a_gradient_is_named_once() {
    let variable = |value: f32| Var::from_slice(&[value], 1, &Device::Cpu).unwrap();
    let [used, seldom, never] = [1.0, 2.0, 3.0].map(variable);
    let list = [
        ("head".to_owned(), used.clone()),
        ("extra".to_owned(), seldom.clone()),
        ("forgotten".to_owned(), never),
    ];
    let variables = CandleVariables::new(list).unwrap();
    let told = logged(|| {
        for step in 0..100 {
            let mut loss = used.sqr().unwrap();
            if step == 7 {
                loss = (loss + seldom.sqr().unwrap()).unwrap();
            }
            let mut store = loss.backward().unwrap();
            let mut flat = vec![0.0; 3];
            freeze(&CandleGradients::new(&variables, &mut store), &mut flat).unwrap();
        }
    });
    assert_eq!(told.matches("WARN").count(), 1, "{told}");
    assert!(
        told.contains(r#"variables=["forgotten"]"#) && told.contains("does not depend on"),
        "{told}"
    );
    assert_eq!(variables.without_gradient(), ["forgotten"]);
}

#[test]
fn buffers_that_are_not_lent_are_named_once() {
    let map = VarMap::new();
    let scope = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    batch_norm(3, BatchNormConfig::default(), scope.pp("norm")).unwrap();
    let alone = logged(|| {
        let model = CandleModel::from_var_map(&map).unwrap();
        // As `synchronize` does it, without buffers.
        for _ in 0..2 {
            model.parameters.elements().unwrap();
            model.parameters.shapes().unwrap();
        }
    });
    assert_eq!(alone.matches("WARN").count(), 1, "{alone}");
    assert!(alone.contains("norm.running_mean"), "{alone}");
    let together = logged(|| {
        let model = CandleModel::from_var_map(&map).unwrap();
        model.parameters.elements().unwrap();
        model.buffers.elements().unwrap();
        model.parameters.shapes().unwrap();
    });
    assert_eq!(together, "");
}

#[test]
fn a_transposed_gradient_is_read_and_written_row_by_row() {
    let weight = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let variables = CandleVariables::new([("weight".to_owned(), weight.clone())]).unwrap();
    let mut store = weight.sum_all().unwrap().backward().unwrap();
    let transposed = Tensor::arange(0f32, 6.0, &Device::Cpu)
        .unwrap()
        .reshape((3, 2))
        .unwrap()
        .t()
        .unwrap();
    store.insert(&weight, transposed);
    let mut gradients = CandleGradients::new(&variables, &mut store);
    let mut flat = vec![0.0; 6];
    freeze(&gradients, &mut flat).unwrap();
    assert_eq!(flat, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    gradients
        .write(&mut |_, values| values.iter_mut().for_each(|value| *value += 10.0))
        .unwrap();
    assert_eq!(
        values(store.get(&weight).unwrap()),
        [10.0, 12.0, 14.0, 11.0, 13.0, 15.0]
    );
}

#[test]
fn variables_of_three_types_are_lent_as_what_they_are() {
    let of = |name: &str, dtype| {
        let values = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap();
        let values = (values * 0.3).unwrap().reshape((2, 3)).unwrap();
        let variable = Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap();
        (name.to_owned(), variable)
    };
    let list = [
        of("a", DType::BF16),
        of("b", DType::F32),
        of("c", DType::F16),
    ];
    let mut variables = CandleVariables::new(list.clone()).unwrap();
    let mut types = Vec::new();
    variables
        .lend(&mut |name, values| {
            let half = match values {
                Values::Float32(_) => None,
                Values::Half(half, _) => Some(half),
            };
            types.push((name.to_owned(), half, values.len()));
        })
        .unwrap();
    let expected = [
        ("a".to_owned(), Some(Half::BFloat16), 6),
        ("b".to_owned(), None, 6),
        ("c".to_owned(), Some(Half::Float16), 6),
    ];
    assert_eq!(types, expected);
    assert_eq!(variables.shapes().unwrap()[2], ("c".to_owned(), vec![2, 3]));

    let mut flat = vec![0.0; 18];
    freeze(&variables, &mut flat).unwrap();
    for (part, (_, variable)) in flat.chunks(6).zip(&list) {
        let wide = variable.to_dtype(DType::F32).unwrap();
        assert_eq!(part, values(&wide), "as candle widens it");
    }
    flat.iter_mut()
        .for_each(|value| *value = *value * 1.1 + 0.01);
    restore(&flat, &mut variables).unwrap();
    for (part, (name, variable)) in flat.chunks(6).zip(&list) {
        let rounded = Tensor::from_slice(part, (2, 3), &Device::Cpu).unwrap();
        let rounded = rounded.to_dtype(variable.dtype()).unwrap();
        let same = variable.eq(&rounded).unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(
            values(&same),
            [1.0; 6],
            "{name} is rounded as candle rounds"
        );
    }
}

#[test]
fn gradients_have_the_types_of_their_variables() {
    let half = Var::zeros(3, DType::BF16, &Device::Cpu).unwrap();
    let unused = Var::zeros(2, DType::F16, &Device::Cpu).unwrap();
    let list = [
        ("half".to_owned(), half.clone()),
        ("unused".to_owned(), unused.clone()),
    ];
    let variables = CandleVariables::new(list).unwrap();
    let loss = (half.as_tensor() * 0.75).unwrap().sum_all().unwrap();
    let mut store = loss.backward().unwrap();
    let mut gradients = CandleGradients::new(&variables, &mut store);
    let mut flat = vec![0.0; 5];
    freeze(&gradients, &mut flat).unwrap();
    assert_eq!(flat, [0.75, 0.75, 0.75, 0.0, 0.0]);
    restore(&[1.0, 2.0, 3.0, 4.0, 5.0], &mut gradients).unwrap();
    let found = |variable: &Var| {
        let gradient = store.get(variable).unwrap();
        (
            gradient.dtype(),
            values(&gradient.to_dtype(DType::F32).unwrap()),
        )
    };
    assert_eq!(found(&half), (DType::BF16, vec![1.0, 2.0, 3.0]));
    assert_eq!(found(&unused), (DType::F16, vec![4.0, 5.0]));
}

#[test]
fn what_cannot_be_lent_is_refused_by_name() {
    let double = Var::zeros(2, DType::F64, &Device::Cpu).unwrap();
    let error = CandleVariables::new([("w".to_owned(), double)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor w: it holds f64, and only f32, bf16 and f16 are lent: lend a float32 copy of it"
    );
    let twice = ["w", "w"].map(|name| {
        (
            name.to_owned(),
            Var::zeros(2, DType::F32, &Device::Cpu).unwrap(),
        )
    });
    let error = CandleVariables::new(twice).unwrap_err().to_string();
    assert!(error.contains("two variables share this name"), "{error}");
    let block = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    let error = super::lend("w", &block.t().unwrap(), &mut |_, _| ()).unwrap_err();
    assert_eq!(
        error,
        TensorError::NotContiguous {
            name: "w".to_owned()
        }
    );
    let mut seen = 0;
    super::lend("w", &block.narrow(0, 1, 1).unwrap(), &mut |_, values| {
        seen = values.len()
    })
    .unwrap();
    assert_eq!(seen, 3, "a part of a larger storage is lent alone");
}
