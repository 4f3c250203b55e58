//! Names in a checkpoint's folder and files.

/// The tensor name of a shard's values in a file.
pub fn values_name(shard: u32) -> String {
    format!("values.{shard}")
}

/// The tensor name of a shard's slow momentum in a file.
pub fn momentum_name(shard: u32) -> String {
    format!("momentum.{shard}")
}

/// The node whose manifest has this file name; `None` for other files.
pub fn manifest_of(name: &str) -> Option<u64> {
    node_of(name, ".json")
}

/// Whether a file name is that of a part: its manifest, its values, or the remains of an unfinished
/// one.
pub fn is_of_a_part(name: &str) -> bool {
    // `.NAME.RANDOM.tmp`, as `handles::temporary_name` names it.
    let unfinished = |name: &str| {
        Some(
            name.strip_prefix('.')?
                .strip_suffix(".tmp")?
                .rsplit_once('.')?
                .0
                .to_owned(),
        )
    };
    let name = unfinished(name).unwrap_or_else(|| name.to_owned());
    manifest_of(&name)
        .or_else(|| node_of(&name, ".safetensors"))
        .is_some()
}

fn node_of(name: &str, ending: &str) -> Option<u64> {
    let node = name
        .strip_prefix("node-")?
        .strip_suffix(ending)?
        .parse()
        .ok()?;
    (name == format!("node-{node}{ending}")).then_some(node)
}

/// The tensor name of the base optimizer's buffers in a file.
pub const OPTIMIZER: &str = "optimizer";
