//! In the oracle (model, shards, batches and optimizer, no network) SlowMo learns the digits better
//! than its base.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use slowmo::internal::tensors::flat::restore;
use slowmo_examples::digits::{Dataset, Evaluation, Mlp, Options, Shards};
use slowmo_examples::method::{METHODS, Method};
use slowmo_examples::oracle;

fn method(name: &str) -> Method {
    *METHODS
        .iter()
        .find(|method| method.name == name)
        .expect("a method of the table")
}

fn evaluate(name: &str, shards: Shards) -> Evaluation {
    let run = oracle::train(
        4,
        &method(name),
        &Options {
            shards,
            ..Options::default()
        },
    )
    .unwrap();
    let mut model = Mlp::seeded(0);
    restore(&run.parameters, model.parameters_mut()).unwrap();
    let loss = model.evaluate(&Dataset::train().unwrap()).loss;
    Evaluation {
        loss,
        accuracy: model.evaluate(&Dataset::test().unwrap()).accuracy,
    }
}

fn slowmo_halves_the_loss_of_its_base(shards: Shards) {
    let base = evaluate("LocalSGD f=12", shards);
    let slow = evaluate("LocalSGD + SlowMo τ=12", shards);
    println!("{shards:?}: {base:?} to {slow:?}");
    assert!(
        slow.loss < 0.5 * base.loss,
        "{shards:?}: {base:?} to {slow:?}"
    );
    assert!(
        base.loss < 0.15 && base.accuracy > 0.92,
        "{shards:?}: {base:?}"
    );
}

#[test]
fn slowmo_halves_the_loss_where_all_nodes_see_all_digits() {
    slowmo_halves_the_loss_of_its_base(Shards::Even);
}

#[test]
fn slowmo_halves_the_loss_where_each_node_sees_some_digits() {
    slowmo_halves_the_loss_of_its_base(Shards::Skewed);
}
