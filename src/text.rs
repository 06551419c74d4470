//! Text of unknown origin: what in it a terminal would obey, or a reader be misled by.

/// C0, DEL and C1 command a terminal; the rest reorders or hides what is read (Unicode's bidirectional controls, line
/// separators, zero-width characters, tags).
pub fn misleads(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The same text with another character in the place of each that misleads.
pub fn cleaned(text: &str, instead: char) -> String {
    text.chars().map(|c| if misleads(c) { instead } else { c }).collect()
}
