//! The scenarios that are part of the binary.

/// A scenario that needs no file.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// Name of the scenario.
    pub name: &'static str,
    /// TOML text of the scenario.
    pub text: &'static str,
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        /// All shipped scenarios, simple ones first.
        pub const SHIPPED: &[Shipped] = &[
            $(
                Shipped { name: $name, text: include_str!(
                    concat!("../../../scenarios/", $name, ".toml")
                ) }
            ),*
        ];
    };
}

shipped![
    "one_kill",
    "full_disk",
    "leader_kill",
    "rolling_restart",
    "half_cut",
    "bridge_cut",
    "flapping_link",
    "slow_link_10mbit",
    "spot_market",
    "two_sites",
    "storm",
    "soak",
];
