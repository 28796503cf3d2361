//! BTF: types and source lines in the kernel's format (Documentation/bpf/btf.rst).

/// The BTF of a program: function names and source lines.
pub struct Btf {
    types: Vec<u8>,
    /// The next type ID, from 1 on; 0 is void.
    next: u32,
    strings: Vec<u8>,
    long: u32,
}

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: u32 = 24;
const KIND_INT: u32 = 1;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
/// enum btf_func_linkage. The kernel verifies a static function at each call, and a global one once
/// for arbitrary arguments.
const STATIC: u32 = 0;
const GLOBAL: u32 = 1;
const SIGNED: u32 = 1 << 24;
const LONG_BITS: u32 = 64;

impl Btf {
    pub fn new() -> Self {
        let mut btf = Self { types: Vec::new(), next: 1, strings: vec![0], long: 0 };
        let name = btf.string("long");
        btf.long = btf.add(name, KIND_INT << 24, LONG_BITS / 8, &[SIGNED | LONG_BITS]);
        btf
    }

    pub fn string(&mut self, text: &str) -> u32 {
        let at = self.strings.len() as u32;
        self.strings.extend(text.bytes().filter(|byte| *byte != 0));
        self.strings.push(0);
        at
    }

    fn add(&mut self, name: u32, info: u32, size_or_type: u32, more: &[u32]) -> u32 {
        for word in [name, info, size_or_type].iter().chain(more) {
            self.types.extend(word.to_le_bytes());
        }
        self.next += 1;
        self.next - 1
    }

    /// Adds a function whose parameters and result are numbers.
    pub fn function(&mut self, name: &str, parameters: usize) -> u32 {
        self.linked(name, parameters, GLOBAL)
    }

    /// Adds the function of a loop body in the named function.
    pub fn loop_body(&mut self, name: &str) -> u32 {
        self.linked(&format!("{name}_round"), 2, STATIC)
    }

    fn linked(&mut self, name: &str, parameters: usize, linkage: u32) -> u32 {
        let argument = self.string("n");
        let arguments = [argument, self.long].repeat(parameters);
        let prototype =
            self.add(0, KIND_FUNC_PROTO << 24 | parameters as u32, self.long, &arguments);
        let name = self.string(name);
        self.add(name, KIND_FUNC << 24 | linkage, prototype, &[])
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        // Version 1, no flags.
        bytes.extend([1, 0]);
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        for word in [HEADER_BYTES, 0, types, types, strings] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(&self.types);
        bytes.extend(&self.strings);
        bytes
    }
}
