//! The byte-level alphabet of GPT-2: every byte as one printable character, and back.

/// The character that stands for `byte`: printable Latin-1 stands for itself, the 68 others follow from U+0100.
pub(super) fn char_of(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        // 0x00..=0x20 are the first 33 of the rest, then 0x7F..=0xA0 (34), then 0xAD.
        0x00..=0x20 => from_offset(u32::from(byte)),
        0x7F..=0xA0 => from_offset(33 + u32::from(byte - 0x7F)),
        0xAD => from_offset(67),
    }
}

fn from_offset(offset: u32) -> char {
    char::from_u32(0x100 + offset).expect("U+0100 to U+0143 are letters")
}

/// The byte `c` stands for, or `None` where it is outside the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        c @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(c as u8),
        c @ 0x100..=0x120 => Some((c - 0x100) as u8),
        c @ 0x121..=0x142 => Some((c - 0x121) as u8 + 0x7F),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The bytes `text` stands for, or `None` where a character of it is outside the alphabet.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection() {
        let chars: std::collections::BTreeSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(chars.len(), 256);
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!((char_of(b' '), char_of(b'\n'), char_of(0x7F), char_of(0xAD)), ('Ġ', 'Ċ', 'ġ', 'Ń'));
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(decode("Ġhi"), Some(b" hi".to_vec()));
        assert_eq!(decode("a b"), None);
    }
}
