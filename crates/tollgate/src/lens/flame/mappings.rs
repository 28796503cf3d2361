//! The mappings of a process, from /proc/PID/maps.

use std::ops::Range;

/// A line of /proc/PID/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappingLine<'a> {
    pub addresses: Range<u64>,
    pub is_executable: bool,
    /// The offset in the file.
    pub offset: u64,
    /// 0: it is of no file.
    pub inode: u64,
    /// The path, or a name in brackets.
    pub name: &'a str,
}

/// The lines that are mappings.
pub fn lines(text: &str) -> impl Iterator<Item = MappingLine<'_>> {
    text.lines().filter_map(line)
}

fn line(text: &str) -> Option<MappingLine<'_>> {
    let mut words = text.splitn(6, ' ');
    let (begin, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let addresses = number(begin)?..number(end)?;
    let is_executable = words.next()?.contains('x');
    let offset = number(words.next()?)?;
    let _device = words.next()?;
    let inode = words.next()?.parse().ok()?;
    let name = words.next().unwrap_or_default().trim_start();
    Some(MappingLine { addresses, is_executable, offset, inode, name })
}

/// Where a process's code and first stack begin, from /proc/PID/stat: they identify the program.
pub fn program_of(stat: &str) -> Option<(u64, u64)> {
    /// Indices from the state on; proc(5), startcode and startstack
    const CODE: usize = 23;
    const STACK: usize = 25;
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let number = |index: usize| fields.get(index)?.trim_end().parse().ok();
    Some((number(CODE)?, number(STACK)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_ranges_files_and_names() {
        let text = "55d0c0000000-55d0c0021000 r-xp 00002000 fe:01 1234    /bin/a b (deleted)\n\
            7ffd1000-7ffd3000 r-xp 00000000 00:00 0     [vdso]\n\
            7ffe1000-7ffe3000 rw-p 00000000 00:00 0 \nno mapping\n";
        let found: Vec<_> = lines(text).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(
            found[0],
            MappingLine {
                addresses: 0x55d0_c000_0000..0x55d0_c002_1000,
                is_executable: true,
                offset: 0x2000,
                inode: 1234,
                name: "/bin/a b (deleted)",
            }
        );
        assert_eq!((found[1].name, found[2].name), ("[vdso]", ""));
        assert!(!found[2].is_executable);
    }

    #[test]
    fn own_program_is_found() {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("there is /proc");
        let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
        let (code, stack) = program_of(&stat).expect("this process has a program");
        let is_in = |address: u64| lines(&maps).find(|line| line.addresses.contains(&address));
        assert!(is_in(code).is_some());
        assert_eq!(is_in(stack).map(|line| line.name.to_owned()), Some("[stack]".into()));
    }
}
