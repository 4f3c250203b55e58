//! Blocks of bytes that follow their length: control frames, and the headers of bulk streams.

use bytes::BytesMut;
use std::io::ErrorKind;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Length of the number before a block, which says how many bytes follow (little endian).
pub(super) const LENGTH_BYTES: usize = 4;

/// A peer sent something that is no block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockError {
    /// The block has this many bytes, more than allowed; none of them was read.
    TooLong(usize),
    /// The stream ended within the block.
    CutOff,
}

/// Reads the next block; `None` at the end of the stream, and if its connection is lost.
///
/// # Errors
/// The block is longer than `max` bytes, or the stream ended within it.
pub(super) async fn read_block(
    stream: &mut (impl AsyncRead + Unpin),
    max: usize,
) -> Result<Option<BytesMut>, BlockError> {
    let mut length = [0; LENGTH_BYTES];
    let begun = match stream.read(&mut length).await {
        Ok(0) | Err(_) => return Ok(None),
        Ok(begun) => begun,
    };
    if fill(stream, &mut length[begun..]).await?.is_none() {
        return Ok(None);
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > max {
        return Err(BlockError::TooLong(length));
    }
    let mut block = BytesMut::zeroed(length);
    Ok(fill(stream, &mut block).await?.map(|()| block))
}

/// Fills a part of a block; `None` if the connection is lost.
async fn fill(
    stream: &mut (impl AsyncRead + Unpin),
    part: &mut [u8],
) -> Result<Option<()>, BlockError> {
    match stream.read_exact(part).await {
        Ok(_) => Ok(Some(())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(BlockError::CutOff),
        Err(_) => Ok(None),
    }
}

/// Reads blocks of at most `max` bytes until there are no more, or one is wrong.
#[cfg(feature = "testing")]
#[must_use]
pub fn blocks_for_tests(mut bytes: &[u8], max: usize) -> Vec<bytes::Bytes> {
    use futures_util::FutureExt;
    let mut blocks = Vec::new();
    // A slice never lets its reader wait.
    while let Some(Ok(Some(block))) = read_block(&mut bytes, max).now_or_never() {
        blocks.push(block.freeze());
    }
    blocks
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn read(bytes: &mut &[u8]) -> Result<Option<BytesMut>, BlockError> {
        read_block(bytes, 3).now_or_never().unwrap()
    }

    #[test]
    fn blocks_follow_each_other_until_the_end() {
        let mut bytes: &[u8] = &[2, 0, 0, 0, 7, 8, 0, 0, 0, 0, 1, 0, 0, 0, 9];
        assert_eq!(read(&mut bytes).unwrap().unwrap(), [7, 8][..]);
        assert_eq!(read(&mut bytes).unwrap().unwrap(), [][..]);
        assert_eq!(read(&mut bytes).unwrap().unwrap(), [9][..]);
        assert_eq!(read(&mut bytes), Ok(None));
    }

    #[test]
    fn a_block_that_is_too_long_or_cut_off_is_told() {
        assert_eq!(read(&mut &[4, 0, 0, 0, 1][..]), Err(BlockError::TooLong(4)));
        assert_eq!(read(&mut &[3, 0, 0, 0, 1][..]), Err(BlockError::CutOff));
        assert_eq!(read(&mut &[3, 0][..]), Err(BlockError::CutOff));
    }
}
