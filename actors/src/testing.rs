//! Helpers shared by the tests of several actors.

use crate::ports::transport::{BulkError, BulkReceiver};
use async_trait::async_trait;
use bytes::{Buf, Bytes};

/// A stream whose bytes have all arrived already.
pub struct Whole(pub Bytes);

#[async_trait]
impl BulkReceiver for Whole {
    async fn read_exact(&mut self, into: &mut [u8]) -> Result<(), BulkError> {
        if self.0.len() < into.len() {
            return Err(BulkError::EndedEarly);
        }
        self.0.copy_to_slice(into);
        Ok(())
    }

    async fn expect_end(&mut self) -> Result<(), BulkError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(BulkError::TooLong)
        }
    }
}
