//! Recycling, memory of other kinds, pieces.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn buffers_come_back_when_the_last_slice_is_gone() {
    let pool = Pool::new();
    pool.keep_at_most(1 << 20);
    let mut buffer = pool.take(8);
    buffer.values_mut()[0] = 7.0;
    let bytes = buffer.freeze().bytes(0..1);
    assert_eq!(bytes, 7.0f32.to_le_bytes().as_slice());
    assert_eq!(
        pool.take(8).values()[0],
        0.0,
        "still referenced by the bytes"
    );
    drop(bytes);
    let one = pool.take(8).values()[0];
    let other = pool.take(8).values()[0];
    assert!(one == 7.0 || other == 7.0);
}

/// Memory for so many values.
#[derive(Debug)]
struct Few(Mutex<usize>);

#[derive(Debug)]
struct OfFew(Vec<f32>);

impl Memory for Few {
    fn allocate(&self, elements: usize) -> Option<Box<dyn Block>> {
        let mut left = self.0.lock();
        *left = left.checked_sub(elements)?;
        Some(Box::new(OfFew(vec![0.0; elements])))
    }
}

impl Block for OfFew {
    fn values(&self) -> &[f32] {
        &self.0
    }

    fn values_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

#[test]
fn memory_of_its_own_kind_is_used_as_long_as_there_is_some() {
    let pool = Pool::of(Arc::new(Few(Mutex::new(10))));
    pool.keep_at_most(64);
    let kind = |buffer: &Buffer| matches!(buffer.values, Values::Block(_));
    let mut first = pool.take(8);
    let second = pool.take(8);
    let third = pool.take(2);
    assert_eq!(
        (kind(&first), kind(&second), kind(&third)),
        (true, false, true)
    );
    first.values_mut()[7] = 5.0;
    assert_eq!(
        (first.freeze().bytes(7..8).as_ref(), second.values().len()),
        (5.0f32.to_le_bytes().as_slice(), 8)
    );
    // It came back, with what it held.
    let again = pool.take(8);
    assert!(kind(&again) && again.values()[7] == 5.0);
}

#[test]
fn a_pool_keeps_no_more_than_its_bound() {
    let pool = Pool::new();
    pool.keep_at_most(8);
    drop((pool.take(8), pool.take(8)));
    assert_eq!(pool.spare.lock().elements, 8);
}

#[test]
fn lengths_that_nobody_asks_for_make_room() {
    let pool = Pool::new();
    pool.keep_at_most(8);
    let old = pool.take(8);
    let newer = pool.take(3);
    drop(old);
    drop(newer);
    let kept = |length| {
        pool.spare
            .lock()
            .by_length
            .get(&length)
            .map_or(0, |kept| kept.values.len())
    };
    assert_eq!((kept(8), kept(3)), (0, 1));
    let other = pool.take(4);
    let newest = pool.take(6);
    drop(other);
    assert_eq!((kept(3), kept(4)), (1, 1));
    drop(newest);
    assert_eq!((kept(3), kept(4), kept(6)), (0, 0, 1));
    drop(pool.take(9));
    assert_eq!((kept(6), kept(9)), (1, 0), "it would not fit");
    drop(pool.take(8));
    assert_eq!((kept(6), kept(8)), (0, 1));
}

#[test]
fn spares_that_nobody_needs_for_a_while_are_freed() {
    let pool = Pool::new();
    pool.keep_at_most(64);
    let kept = || pool.spare.lock().elements;
    drop((pool.take(8), pool.take(8), pool.take(4)));
    pool.release_unused();
    assert_eq!(kept(), 20, "they were in use since the last time");
    let _one = pool.take(8);
    pool.release_unused();
    assert_eq!(kept(), 0, "one of 8 and that of 4 were never taken");
    drop(pool.take(8));
    pool.release_unused();
    assert_eq!(kept(), 8);
    pool.release_unused();
    assert_eq!(kept(), 0);
}

#[test]
fn spares_that_made_room_for_others_were_not_there_all_the_time() {
    let pool = Pool::new();
    pool.keep_at_most(20);
    let kept = || pool.spare.lock().elements;
    let fives: Vec<Buffer> = (0..4).map(|_| pool.take(5)).collect();
    let others: Vec<Buffer> = (0..3).map(|_| pool.take(5)).collect();
    drop(fives);
    pool.release_unused();
    // Two of the four make room, and buffers of the same length come back after that.
    drop(pool.take(10));
    assert_eq!(kept(), 20);
    drop(pool.take(10));
    pool.spare.lock().elements_max = 35;
    drop(others);
    pool.release_unused();
    assert_eq!(kept(), 25, "only two fives were there all the time");
}

#[test]
fn pieces_are_copied_across_their_borders() {
    let pool = Pool::new();
    let mut assembled = ChunkedBuffer::default();
    for start in [0usize, 3, 6] {
        let mut chunk = pool.take(3);
        chunk
            .values_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, value)| *value = (start + i) as f32);
        assembled.insert(start, chunk.freeze());
    }
    assert!(assembled.covers(9) && !assembled.covers(10));
    let mut target = [0.0; 5];
    assembled.copy_to(2, &mut target);
    assert_eq!(target, [2.0, 3.0, 4.0, 5.0, 6.0]);
}

#[test]
fn chunks_cover_a_range() {
    let all: Vec<_> = chunks(5..5 + 2 * CHUNK_ELEMENTS + 1).collect();
    assert_eq!(all.len(), 3);
    assert_eq!(all[0].end, all[1].start);
    assert_eq!(all[2].len(), 1);
    assert_eq!(chunks(4..4).count(), 0);
}

#[test]
fn chunks_and_pieces_lie_beyond_four_thousand_million_values() {
    const END: usize = (1 << 33) + 100;
    assert_eq!(chunks(0..END).count(), END.div_ceil(CHUNK_ELEMENTS));
    let last = chunks((1 << 33) - CHUNK_ELEMENTS..END).last();
    assert_eq!(last, Some(1 << 33..END));
    let pool = Pool::new();
    let mut flat = ChunkedBuffer::default();
    for start in [(1 << 32) - 4, 1 << 32, (1 << 32) + 4] {
        let mut chunk = pool.take(4);
        chunk.values_mut().fill(start as f32 / (1u64 << 32) as f32);
        chunk.values_mut()[3] = 7.0;
        flat.insert(start, chunk.freeze());
    }
    let mut found = [0.0; 6];
    flat.copy_to((1 << 32) - 1, &mut found);
    assert_eq!(found, [7.0, 1.0, 1.0, 1.0, 7.0, 1.0]);
    // The same place without its upper bits is another one.
    let mut other = [0.0; 6];
    flat.copy_to(3, &mut other);
    assert_eq!(other, [0.0; 6]);
}
