//! Packed tiles times many activation rows on Intel's matrix unit (AMX).
//!
//! The unit multiplies 16 rows of 64 bytes with 64 elements of 16 weight rows and sums in i32, which is
//! exact; the f32 chain over blocks is that of `definition.rs`: the same bits as every other path.
//!
//! Statements of assembly hand each other values in the unit's registers without naming them: the compiler
//! knows the unit only by such statements, and never uses it.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of each function covers its body")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;
use std::sync::OnceLock;

use crate::Format;
use crate::layout::{LINE, TILE};
use crate::tile::Job;

mod scaled;
mod simple;

/// Activation rows of a matrix register.
const ROWS: usize = 16;
/// Groups of rows that share an unpacked block; so many that their integers stay in the second-level cache.
const GROUPS: usize = 8;

/// Whether `m` rows of weights in `format` are better done here: fewer are faster without it.
pub(crate) fn is_worth(format: Format, m: usize) -> bool {
    m >= if format.block_len() == 256 { 8 } else { 16 }
}

/// Whether this CPU has the unit, the system lets this process use it, and it computes what it should.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        let bits = __cpuid_count(7, 0).edx;
        let has = |bit: u32| bits >> bit & 1 == 1;
        // AMX-TILE and AMX-INT8.
        __get_cpuid_max(0).0 >= 7 && has(24) && has(25) && permitted() && {
            // SAFETY: the CPU has the unit, and the system lets us use it.
            unsafe { works() }
        }
    })
}

/// Asks the system for the unit's large register state, for this process.
fn permitted() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_PRCTL: i64 = 158;
        const REQUEST_PERMISSION: i64 = 0x1023;
        const TILE_DATA: i64 = 18;
        let result: i64;
        // SAFETY: a system call that reads and writes no memory of ours.
        unsafe {
            asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION,
                in("rsi") TILE_DATA, lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result == 0
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Multiplies a pair of small matrices and looks at the result.
///
/// # Safety
/// The unit is there and permitted.
unsafe fn works() -> bool {
    let a: [[i8; LINE]; ROWS] = std::array::from_fn(|r| std::array::from_fn(|k| (r * 5 + k * 3) as i8));
    let b: [[u8; LINE]; TILE] = std::array::from_fn(|l| std::array::from_fn(|i| (l * 7 + i * 11) as u8));
    let mut c = [[0i32; TILE]; ROWS];
    Config::new(ROWS).load();
    asm!(
        "tilezero tmm0", "tileloadd tmm4, [{a} + {stride}]", "tileloadd tmm6, [{b} + {stride}]",
        "tdpbsud tmm0, tmm4, tmm6", "tilestored [{c} + {stride}], tmm0", "tilerelease",
        a = in(reg) a.as_ptr(), b = in(reg) b.as_ptr(), c = in(reg) c.as_mut_ptr(), stride = in(reg) LINE,
        options(nostack),
    );
    (0..ROWS).all(|r| {
        (0..TILE).all(|n| {
            let product = |k: usize| i32::from(a[r][k]) * i32::from(b[k / 4][4 * n + k % 4]);
            c[r][n] == (0..LINE).map(product).sum::<i32>()
        })
    })
}

/// The unit's configuration: 0 to 3 sums, 4 and 5 activations, 6 and 7 weights.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// For `rows` activation rows.
    fn new(rows: usize) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        config.row_bytes[..8].fill(LINE as u16);
        config.rows[..6].fill(rows as u8);
        config.rows[6..8].fill(16);
        config
    }

    /// For blocks of 32 elements instead of 64.
    fn halve(&mut self) {
        self.row_bytes[4..6].fill(LINE as u16 / 2);
        self.rows[6..8].fill(8);
    }

    /// This thread's; all zeros where there is none.
    unsafe fn current() -> Self {
        let mut config = Self::new(0);
        asm!("sttilecfg [{}]", in(reg) &mut config, options(nostack));
        config
    }

    /// Makes it this thread's, until `tilerelease`.
    unsafe fn load(&self) {
        asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly));
    }
}

/// Multiplies the tiles `tiles`.
///
/// # Safety
/// As `tile::multiply`; and [`is_available`].
pub(crate) unsafe fn multiply(job: &Job<'_>, tiles: Range<usize>) {
    let mut config = Config::new(job.m.min(ROWS));
    if job.weights.format().block_len() == 32 {
        config.halve();
    }
    // The thread may be a caller's, and its unit configured by another library, which will not look again.
    let before = Config::current();
    config.load();
    match job.weights.format() {
        Format::Q2_K | Format::Q3_K | Format::Q4_K | Format::Q5_K | Format::Q6_K => {
            scaled::multiply(job, tiles)
        }
        _ => simple::multiply(job, tiles),
    }
    match before.palette {
        0 => asm!("tilerelease", options(nostack, nomem)),
        _ => before.load(),
    }
}

/// Groups of 16 rows, or one of all if there are fewer.
fn groups(m: usize) -> usize {
    m.div_ceil(ROWS)
}

/// The first row of a group. The last group ends with the last row; what it shares with its neighbour is done
/// twice.
fn first_row(group: usize, m: usize) -> usize {
    (group * ROWS).min(m - m.min(ROWS))
}
