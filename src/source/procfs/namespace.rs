//! Links such as `pid:[4026531836]`.

/// The PID namespace that the kernel starts with (`include/linux/proc_ns.h`).
pub const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

pub fn parse(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_the_number_in_its_link() {
        assert_eq!(parse("pid:[4026531836]"), Some(FIRST_PID_NAMESPACE));
        assert_eq!(parse("pid:4026531836"), None);
        assert_eq!(parse(""), None);
    }
}
