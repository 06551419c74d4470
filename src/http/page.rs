//! The page for people: no script, refreshes itself, every text escaped.

pub fn render(_cycle: Option<&crate::cycle::Cycle>) -> String {
    String::new()
}
