//! How deep a YAML text nests, told before it is given to a parser whose time grows with the square of that.

/// Deeper nothing of ours is, by far.
const DEEPEST: usize = 1000;

/// The place of the bracket that is one too many, as line and column. Brackets in quotes and comments do not count.
pub fn too_deep(text: &str) -> Option<(usize, usize)> {
    let (mut line, mut column, mut depth) = (1, 0, 0_usize);
    let (mut quote, mut comment, mut escaped, mut before) = (None, false, false, ' ');
    for c in text.chars() {
        column += 1;
        match (quote, c) {
            (Some('"'), '\\') if !escaped => escaped = true,
            (Some(open), _) => {
                if c == open && !escaped {
                    quote = None;
                }
                escaped = false;
            }
            (None, '\n') => comment = false,
            (None, _) if comment => {}
            (None, '#') if before.is_whitespace() => comment = true,
            // Within a word it is an apostrophe.
            (None, '"' | '\'') if before.is_whitespace() || "[{,:".contains(before) => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        if depth > DEEPEST {
            return Some((line, column));
        }
        if c == '\n' {
            (line, column) = (line + 1, 0);
        }
        before = c;
    }
    None
}
