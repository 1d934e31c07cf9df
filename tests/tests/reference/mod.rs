//! Reference data from public packages: fetched once into the cache folder, never part of the repository.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder for what tests fetch.
fn cache() -> PathBuf {
    let base = std::env::var_os("SPECGEN_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(PathBuf::from(home).join(".cache/specgen"))
    });
    base.expect("SPECGEN_HOME or HOME is set").join("reference")
}

/// The vocabularies and chat templates in the source package of llama-cpp-python, or why they cannot be had.
pub fn llama_cpp_models() -> Result<PathBuf, String> {
    let folder = cache().join("llama-cpp-python-0.3.36");
    once(&folder, |work| {
        let package = "llama-cpp-python==0.3.36";
        let pip = [
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            package,
            "-d",
            ".",
        ];
        run(Path::new("python3"), &pip, work)?;
        let archive = "llama_cpp_python-0.3.36.tar.gz";
        let models = "llama_cpp_python-0.3.36/vendor/llama.cpp/models";
        run(Path::new("tar"), &["xzf", archive, "--strip-components=4", models], work)?;
        std::fs::remove_file(work.join(archive)).map_err(|e| e.to_string())
    })?;
    Ok(folder)
}

/// A Python that has jinja2, or why there is none.
#[allow(dead_code, reason = "each test binary uses its part")]
pub fn python_with_jinja2() -> Result<PathBuf, String> {
    let folder = cache().join("jinja2-3.1.6");
    once(&folder, |work| {
        run(Path::new("python3"), &["-m", "pip", "install", "-q", "--target", ".", "jinja2==3.1.6"], work)
    })?;
    Ok(folder)
}

/// Fills `folder` by `fill` in a folder beside it, so that a broken fetch leaves nothing behind.
fn once(folder: &Path, fill: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder.parent().expect("a folder in the cache");
    std::fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    let work = tempfile::tempdir_in(parent).map_err(|e| e.to_string())?;
    fill(work.path())?;
    match std::fs::rename(work.path(), folder) {
        // Another run was faster.
        Err(_) if folder.is_dir() => Ok(()),
        other => other.map_err(|e| e.to_string()),
    }
}

/// Runs a command. `Err` where the network or the program is missing.
///
/// # Panics
/// Where it fails for another reason: that is no reason to skip a test.
fn run(program: &Path, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .map_err(|e| format!("{} cannot be run: {e}", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let offline = [
        "No matching distribution",
        "onnection",
        "timed out",
        "resolution",
        "Could not fetch",
        "No module named pip",
    ];
    assert!(
        offline.iter().any(|sign| errors.contains(sign)),
        "{} {} failed: {errors}",
        program.display(),
        arguments.join(" ")
    );
    Err(format!("the package cannot be reached: {}", errors.lines().last().unwrap_or_default()))
}
