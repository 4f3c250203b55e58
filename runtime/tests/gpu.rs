//! What a node says that cannot have the GPU that it was told to use. With the feature `cuda` this
//! also runs where there is neither a GPU nor its driver.
#![allow(clippy::unwrap_used, clippy::panic)]

use slowmo::{Config, Runtime};

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let mut config = Config::default();
    config.set("device", "cuda").unwrap();
    let spawned = Runtime::builder().config(config).spawn();
    #[cfg(feature = "cuda")]
    if slowmo_cuda::Library::Driver.is_present() {
        // A GPU may be there as well, and then the node runs.
        return;
    }
    let Err(error) = spawned else {
        panic!("there is no GPU");
    };
    let text = error.to_string();
    let why = if cfg!(feature = "cuda") {
        "the CUDA driver is missing (libcuda.so.1)"
    } else {
        "feature cuda"
    };
    assert!(
        text.starts_with("device = cuda") && text.contains(why),
        "{text}"
    );
}
