//! What people read, word for word: help, refusals, comparisons. No root needed.
//! After a change that is meant, `TRYCMD=overwrite cargo test -p tollgate --test cli` writes the new texts.

mod guard_store;

#[test]
fn texts() {
    trycmd::TestCases::new().case("../../tests/cli/*.trycmd").run();
}
