//! The documented table of configuration keys is the table that the code reads.

#[test]
fn the_documentation_lists_every_key_as_it_is() {
    let table = slowmo::internal::config::keys::markdown_table();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).expect("docs stand beside the workspace");
    assert!(
        page.contains(&table),
        "replace the table of docs/configuration.md by:\n\n{table}"
    );
}
