//! What is written in a quantised block: its integers, scales and minimums, for every GGUF layout.

use half::f16;

use crate::Format;

/// The content of one block, unpacked. Element `i` stands for
/// `d * scale[i / 16] * (q[i] - offset) - dmin * min[i / 16]` in the K formats and
/// `d * (q[i] - offset) + m` in the 32-element ones.
pub(crate) struct Block {
    /// Elements in use: 32 or 256.
    pub(crate) len: usize,
    /// Unsigned integers; Q8_0 has its signed bytes moved up by 128.
    pub(crate) q: [u8; 256],
    /// What is taken from every `q`.
    pub(crate) offset: i32,
    /// Scales of the 16-element sub-blocks. Formats with sub-blocks of 32 repeat each.
    pub(crate) scale: [i32; 16],
    /// Minimums of the 16-element sub-blocks.
    pub(crate) min: [i32; 16],
    /// The block's scale.
    pub(crate) d: f32,
    /// `dmin` of the K formats, `m` of the `_1` formats, else 0.
    pub(crate) m: f32,
}

impl Block {
    pub(crate) const fn new() -> Self {
        Self { len: 0, q: [0; 256], offset: 0, scale: [1; 16], min: [0; 16], d: 0.0, m: 0.0 }
    }

    /// Unpacks the block at the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than a block, or the format is a dense one.
    pub(crate) fn read(&mut self, format: Format, bytes: &[u8]) {
        let bytes = &bytes[..format.block_bytes()];
        self.len = format.block_len();
        self.offset = offset(format);
        self.m = 0.0;
        match format {
            Format::F32 | Format::F16 | Format::BF16 => panic!("{format:?} has no blocks"),
            Format::Q4_0 => {
                self.d = f16_at(bytes, 0);
                nibbles_32(&bytes[2..18], &mut self.q);
            }
            Format::Q4_1 => {
                self.d = f16_at(bytes, 0);
                self.m = f16_at(bytes, 2);
                nibbles_32(&bytes[4..20], &mut self.q);
            }
            Format::Q5_0 => {
                self.d = f16_at(bytes, 0);
                nibbles_32(&bytes[6..22], &mut self.q);
                fifth_bits(&bytes[2..6], &mut self.q);
            }
            Format::Q5_1 => {
                self.d = f16_at(bytes, 0);
                self.m = f16_at(bytes, 2);
                nibbles_32(&bytes[8..24], &mut self.q);
                fifth_bits(&bytes[4..8], &mut self.q);
            }
            Format::Q8_0 => {
                self.d = f16_at(bytes, 0);
                for (q, &b) in self.q.iter_mut().zip(&bytes[2..34]) {
                    *q = b ^ 0x80; // i8 + 128, as u8
                }
            }
            Format::Q2_K => self.read_q2_k(bytes),
            Format::Q3_K => self.read_q3_k(bytes),
            Format::Q4_K => {
                self.read_scales_4k(bytes);
                nibbles_256(&bytes[16..144], &mut self.q);
            }
            Format::Q5_K => {
                self.read_scales_4k(bytes);
                nibbles_256(&bytes[48..176], &mut self.q);
                for (i, q) in self.q.iter_mut().enumerate() {
                    *q |= (bytes[16 + i % 32] >> (i / 32) & 1) << 4;
                }
            }
            Format::Q6_K => self.read_q6_k(bytes),
        }
    }

    /// The integers without their offset.
    #[cfg(test)]
    pub(crate) fn signed(&self) -> [i16; 256] {
        self.q.map(|q| i16::from(q) - self.offset as i16)
    }

    /// The header Q4_K and Q5_K share: d, dmin, and eight 6-bit scales and minimums in 12 bytes.
    fn read_scales_4k(&mut self, bytes: &[u8]) {
        self.d = f16_at(bytes, 0);
        self.m = f16_at(bytes, 2);
        let s = &bytes[4..16];
        for j in 0..8 {
            let (scale, min) = if j < 4 {
                (s[j] & 63, s[j + 4] & 63)
            } else {
                ((s[j + 4] & 15) | (s[j - 4] >> 6) << 4, s[j + 4] >> 4 | (s[j] >> 6) << 4)
            };
            self.scale[2 * j..2 * j + 2].fill(i32::from(scale));
            self.min[2 * j..2 * j + 2].fill(i32::from(min));
        }
    }

    /// Q2_K: 16 bytes of 4-bit scales and minimums, 64 bytes of 2-bit values, d, dmin.
    fn read_q2_k(&mut self, bytes: &[u8]) {
        self.d = f16_at(bytes, 80);
        self.m = f16_at(bytes, 82);
        for j in 0..16 {
            self.scale[j] = i32::from(bytes[j] & 15);
            self.min[j] = i32::from(bytes[j] >> 4);
        }
        two_bits(&bytes[16..80], &mut self.q);
    }

    /// Q3_K: 32 bytes of third bits, 64 bytes of 2-bit values, sixteen 6-bit scales in 12 bytes, d.
    fn read_q3_k(&mut self, bytes: &[u8]) {
        self.d = f16_at(bytes, 108);
        let s = &bytes[96..108];
        for j in 0..16 {
            let low = if j < 8 { s[j] & 15 } else { s[j - 8] >> 4 };
            let high = s[8 + j % 4] >> (2 * (j / 4)) & 3;
            self.scale[j] = i32::from(low | high << 4) - 32;
        }
        two_bits(&bytes[32..96], &mut self.q);
        for (i, q) in self.q.iter_mut().enumerate() {
            *q |= (bytes[i % 32] >> (i / 32) & 1) << 2;
        }
    }

    /// Q6_K: 128 bytes of low nibbles, 64 bytes of top two bits, sixteen i8 scales, d.
    fn read_q6_k(&mut self, bytes: &[u8]) {
        self.d = f16_at(bytes, 208);
        for j in 0..16 {
            self.scale[j] = i32::from(bytes[192 + j].cast_signed());
        }
        for (half, q) in self.q.chunks_exact_mut(128).enumerate() {
            let low = &bytes[64 * half..64 * half + 64];
            let high = &bytes[128 + 32 * half..160 + 32 * half];
            for l in 0..32 {
                q[l] = (low[l] & 15) | (high[l] & 3) << 4;
                q[l + 32] = (low[l + 32] & 15) | (high[l] >> 2 & 3) << 4;
                q[l + 64] = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
                q[l + 96] = low[l + 32] >> 4 | (high[l] >> 6) << 4;
            }
        }
    }
}

/// What is taken from the stored unsigned integers of a format.
pub(crate) const fn offset(format: Format) -> i32 {
    match format {
        Format::Q3_K => 4,
        Format::Q4_0 => 8,
        Format::Q5_0 => 16,
        Format::Q6_K => 32,
        Format::Q8_0 => 128,
        _ => 0,
    }
}

/// The f16 at byte `at`, widened.
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32_const()
}

/// 16 bytes: element `j` low, element `j + 16` high.
fn nibbles_32(bytes: &[u8], q: &mut [u8; 256]) {
    for (j, &b) in bytes.iter().enumerate() {
        q[j] = b & 15;
        q[j + 16] = b >> 4;
    }
}

/// Bit `j` of the little-endian word is the fifth bit of element `j`.
fn fifth_bits(bytes: &[u8], q: &mut [u8; 256]) {
    for (j, q) in q[..32].iter_mut().enumerate() {
        *q |= (bytes[j / 8] >> (j % 8) & 1) << 4;
    }
}

/// Four runs of 32 bytes, each with 32 elements low and the next 32 high.
fn nibbles_256(bytes: &[u8], q: &mut [u8; 256]) {
    for (run, q) in bytes.chunks_exact(32).zip(q.chunks_exact_mut(64)) {
        for (l, &b) in run.iter().enumerate() {
            q[l] = b & 15;
            q[l + 32] = b >> 4;
        }
    }
}

/// Two runs of 32 bytes, each with four planes of 32 two-bit elements.
fn two_bits(bytes: &[u8], q: &mut [u8; 256]) {
    for (run, q) in bytes.chunks_exact(32).zip(q.chunks_exact_mut(128)) {
        for (j, q) in q.chunks_exact_mut(32).enumerate() {
            for (q, &b) in q.iter_mut().zip(run) {
                *q = b >> (2 * j) & 3;
            }
        }
    }
}
