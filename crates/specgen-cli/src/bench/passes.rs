//! `specgen bench --kernels`: what passes of several rows cost, beside a pass of one and a plain read of the weights.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value, json};
use specgen::{
    OpenModel,
    bench::{CONTEXT, PassTime, VERIFY_ROWS, pass_times, read_time},
    device::{Device, DeviceSpec},
    memory::{self, Usage},
    model::{LoadOptions, load_with_clocks},
};

use super::{millis, ratio, rounded};
use crate::{
    args::BenchArgs,
    output::{bytes, note, print, print_json},
    progress,
};

pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let store = args.files.store()?;
    let progress = progress::reporter(false);
    for name in &args.targets {
        let open = OpenModel::open(&store.resolve(name, &*progress)?, &args.files.overrides())?;
        let report = Report::measure(&open, args)?;
        if args.json {
            print_json(&report.json())?;
        } else {
            print(&report.text())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

struct Report {
    model: String,
    threads: usize,
    bytes_per_pass: u64,
    /// Of the tensors in the weights' files.
    file_bytes: u64,
    /// What loading them added to this process, where the system tells.
    resident: Option<u64>,
    read: Duration,
    passes: Vec<PassTime>,
}

impl Report {
    fn measure(open: &OpenModel, args: &BenchArgs) -> Result<Self> {
        let device = Device::open(DeviceSpec::Cpu, args.threads)?;
        let rows = args.rows.iter().max().map_or(1, |&rows| rows as usize);
        let kv_type = device.spec().kv_type(args.kv.kind)?;
        let context_len = CONTEXT + rows;
        let usage =
            Usage { context_len, num_sequences: 1, rows: rows.min(VERIFY_ROWS), kv_type, num_logits: None };
        memory::check(&[open.memory(usage)])?;
        note(format_args!("{}: loading", open.name));
        let before = memory::resident();
        let options = LoadOptions {
            device: device.clone(),
            context_len: None,
            kv_type: Some(kv_type),
            copy_as: None,
            head_ids: None,
        };
        let model = load_with_clocks(&open.weights, open.config.clone(), &options)?;
        let resident = memory::resident().zip(before).map(|(after, before)| after.saturating_sub(before));
        let rows: Vec<usize> = args.rows.iter().map(|&rows| rows as usize).collect();
        let reps = args.reps();
        let tick = |rows| note(format_args!("{}: passes of {rows} rows", open.name));
        let passes = pass_times(&*model, &rows, reps, tick)?;
        let read = read_time(&*model, reps);
        Ok(Self {
            model: open.name.clone(),
            threads: device.threads(),
            bytes_per_pass: model.info().pass_bytes,
            file_bytes: open.weights.total_bytes(),
            resident,
            read,
            passes,
        })
    }

    /// GB/s at which a pass of `time` reads the weights.
    fn rate(&self, time: Duration) -> f64 {
        self.bytes_per_pass as f64 / time.as_secs_f64() * 1e-9
    }

    fn one_row(&self) -> Option<Duration> {
        self.passes.iter().find(|pass| pass.rows == 1).map(|pass| pass.median)
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}: {:.1} MB of weights a pass, {} threads, {}; a plain read takes {:.2} ms, {:.1} GB/s\n",
            self.model,
            self.bytes_per_pass as f64 * 1e-6,
            self.threads,
            specgen::device::cpu_isa(),
            millis(self.read),
            self.rate(self.read)
        );
        if let Some(resident) = self.resident {
            let times = resident as f64 / self.file_bytes as f64;
            writeln!(text, "they take {} of memory, {times:.2} times the file's tensors", bytes(resident))
                .expect("a string takes everything");
        }
        text.push_str(
            "   m  median ms    best ms      tok/s  T(m)/T(1)    GB/s  of read  matmul  attention  rest\n",
        );
        for pass in &self.passes {
            let over_one = self.one_row().map_or("-".into(), |one| format!("{:.2}", ratio(pass.median, one)));
            let ops: Duration = pass.ops.iter().map(|(_, time)| *time).sum();
            let share = |name: &str| {
                let time =
                    pass.ops.iter().find(|(op, _)| *op == name).map_or(Duration::ZERO, |(_, time)| *time);
                100.0 * ratio(time, pass.median)
            };
            let (matmul, attention) = (share("matmul"), share("attention"));
            let rest = 100.0 * ratio(ops, pass.median) - matmul - attention;
            writeln!(
                text,
                "{:4} {:10.2} {:10.2} {:10.1} {over_one:>10} {:7.1} {:6.0} % {matmul:5.0} % {attention:8.0} % {rest:3.0} %",
                pass.rows,
                millis(pass.median),
                millis(pass.best),
                pass.rows as f64 / pass.median.as_secs_f64(),
                self.rate(pass.median),
                100.0 * ratio(self.read, pass.median),
            )
            .expect("a string takes everything");
        }
        text
    }

    fn json(&self) -> impl Serialize {
        let by_rows = |value: &dyn Fn(&PassTime) -> Value| -> Map<String, Value> {
            self.passes.iter().map(|pass| (pass.rows.to_string(), value(pass))).collect()
        };
        let ops = |pass: &PassTime| {
            pass.ops.iter().map(|(op, time)| ((*op).to_owned(), rounded(millis(*time)).into())).collect::<Map<
                String,
                Value,
            >>(
            )
        };
        let mut object = json!({
            "engine": "specgen",
            "model": self.model,
            "isa": specgen::device::cpu_isa(),
            "threads": self.threads,
            "bytes_per_pass": self.bytes_per_pass,
            "file_bytes": self.file_bytes,
            "resident_bytes": self.resident,
            "read_ms": rounded(millis(self.read)),
            "bandwidth_gb_s": rounded(self.rate(self.read)),
            "rows": by_rows(&|pass| rounded(millis(pass.median)).into()),
            "best": by_rows(&|pass| rounded(millis(pass.best)).into()),
            "ops": by_rows(&|pass| ops(pass).into()),
        });
        if let Some(one) = self.one_row() {
            object["ratio"] = by_rows(&|pass| rounded(ratio(pass.median, one)).into()).into();
        }
        object
    }
}
