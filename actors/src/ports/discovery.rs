//! stub
use async_trait::async_trait;
use std::net::SocketAddr;
/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct DiscoveryError;
/// x
#[async_trait]
pub trait Discovery: Send + Sync + 'static {
    /// x
    async fn peers(&self) -> Result<Vec<SocketAddr>, DiscoveryError>;
}
