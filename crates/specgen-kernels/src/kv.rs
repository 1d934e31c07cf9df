//! Keys and values of one layer of one sequence, in the order attention reads them.

/// Keys that lie together: one block of attention's positions.
pub(crate) const BLOCK: usize = 64;
/// Slots by which a store grows, so that growth stays rare.
const STEP: usize = 256;

/// Keys and values of a layer, a row of each for every slot.
///
/// Sixty-four slots' keys are kept side by side, `[slots / 64, kv_dim, 64]`, so that a register holds an element of
/// sixteen keys and a score needs no sum across lanes. Values are rows, `[slots, kv_dim]`.
#[derive(Clone, Debug)]
pub struct KvStore {
    keys: Vec<f32>,
    values: Vec<f32>,
    kv_dim: usize,
}

impl KvStore {
    /// A store without slots, for rows of `kv_dim` elements (all key heads' side by side).
    pub fn new(kv_dim: usize) -> Self {
        Self { keys: Vec::new(), values: Vec::new(), kv_dim }
    }

    /// Slots there is room for; a multiple of 64.
    pub fn slots(&self) -> usize {
        self.values.len() / self.kv_dim
    }

    /// Elements of a row.
    pub fn kv_dim(&self) -> usize {
        self.kv_dim
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * size_of::<f32>()
    }

    /// Writes rows of keys and values (`[rows, kv_dim]`) to the slots from `slot` on, making room where there is none.
    ///
    /// # Panics
    /// If they aren't whole rows, or not as many of each.
    pub fn write(&mut self, slot: usize, keys: &[f32], values: &[f32]) {
        let dim = self.kv_dim;
        assert!(
            keys.len() == values.len() && keys.len().is_multiple_of(dim),
            "rows of {dim} for keys and values"
        );
        let end = slot + keys.len() / dim;
        if end > self.slots() {
            let len = end.next_multiple_of(STEP) * dim;
            self.keys.resize(len, 0.0);
            self.values.resize(len, 0.0);
        }
        self.values[slot * dim..end * dim].copy_from_slice(values);
        for (slot, row) in (slot..end).zip(keys.chunks_exact(dim)) {
            for (x, place) in row.iter().zip(self.keys[slot / BLOCK * BLOCK * dim..].chunks_exact_mut(BLOCK))
            {
                place[slot % BLOCK] = *x;
            }
        }
    }

    /// Copies the row of slot `from` to slot `to`.
    ///
    /// # Panics
    /// If either is not there.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let dim = self.kv_dim;
        self.values.copy_within(from * dim..(from + 1) * dim, to * dim);
        let at = |slot: usize, i: usize| (slot / BLOCK * dim + i) * BLOCK + slot % BLOCK;
        for i in 0..dim {
            self.keys[at(to, i)] = self.keys[at(from, i)];
        }
    }

    /// Keys of the slots `64 b..64 b + 64`: elements from `first` of `kv_dim` on, `[_, 64]`.
    pub(crate) fn keys(&self, b: usize, first: usize) -> &[[f32; BLOCK]] {
        &self.keys[b * BLOCK * self.kv_dim..(b + 1) * BLOCK * self.kv_dim].as_chunks().0[first..]
    }

    /// All values, `[slots, kv_dim]`.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_move() {
        let row = |slot: usize| (0..3).map(|i| (10 * slot + i) as f32).collect::<Vec<_>>();
        let mut store = KvStore::new(3);
        let rows: Vec<f32> = (0..300).flat_map(row).collect();
        store.write(0, &rows[..30], &rows[..30]);
        store.write(10, &rows[30..], &rows[30..]);
        assert_eq!((store.slots(), store.bytes()), (512, 512 * 3 * 8));
        store.copy_slot(299, 70);
        let key = |slot: usize| {
            store.keys(slot / BLOCK, 0)[..3].iter().map(|d| d[slot % BLOCK]).collect::<Vec<_>>()
        };
        for slot in 0..300 {
            let wanted = row(if slot == 70 { 299 } else { slot });
            assert_eq!(key(slot), wanted);
            assert_eq!(store.values()[3 * slot..3 * slot + 3], wanted);
        }
    }
}
