//! Configuration skeleton.

/// Everything a node can be told.
#[derive(Clone, Debug, Default)]
pub struct Config {}

/// Why a configuration was refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("configuration")]
pub struct ConfigError;

impl Config {
    /// File, then `SLOWMO_*` variables, then `--slowmo-*` flags; the later wins.
    ///
    /// # Errors
    /// Unknown key, value out of range.
    pub fn load() -> Result<Self, ConfigError> {
        Ok(Self {})
    }
}
