//! The README's table of configuration keys is the table that the code reads.

#[test]
fn the_readme_lists_every_key_as_it_is() {
    let table = slowmo::config::keys::markdown_table();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    let readme = std::fs::read_to_string(path).expect("the README stands beside the workspace");
    assert!(
        readme.contains(&table),
        "replace the README's table of keys by:\n\n{table}"
    );
}
