//! `norfab init`.

use insta::assert_snapshot;

use crate::support::Lab;

#[test]
fn a_fresh_environment_says_what_was_made_and_what_comes_next() {
    let lab = Lab::empty();
    let ended = lab.run(&["init", "lab"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stderr, "");
    assert_snapshot!(ended.stdout, @r"
    wrote lab/inventory.yaml
    wrote lab/.env
    wrote lab/files/welcome.txt

    next: cd lab && norfab up
    ");
}

#[test]
fn the_second_time_nothing_is_overwritten_unless_forced() {
    let lab = Lab::empty();
    assert_eq!(lab.run(&["init", "lab"]).code, Some(0));
    lab.write("lab/inventory.yaml", "broker: mine\n");
    let again = lab.run(&["init", "lab"]);
    assert_eq!(again.code, Some(5), "{again:?}");
    assert_eq!(again.stdout, "");
    assert_snapshot!(again.stderr, @"error: lab/inventory.yaml exists already: choose another folder, or overwrite it with --force");
    assert_eq!(lab.read("lab/inventory.yaml"), "broker: mine\n");

    assert_eq!(lab.run(&["init", "lab", "--force"]).code, Some(0));
    assert!(lab.read("lab/inventory.yaml").contains("topology:"));
}

#[test]
fn a_file_in_the_place_of_the_folder_is_named() {
    let lab = Lab::empty();
    lab.write("file", "");
    for arguments in [&["init", "file"][..], &["init", "file", "--force"]] {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{ended:?}");
        assert_eq!(ended.stderr, "error: file: is there and no folder: choose another name for the new environment\n");
    }
}

#[test]
fn json_names_the_files() {
    let lab = Lab::empty();
    let document = lab.json(&["init", ".", "--json"]);
    let files = document["files"].as_array().expect("a list");
    assert_eq!(files.len(), 3);
    for file in files {
        assert!(lab.path(file.as_str().expect("a path")).is_file(), "{file}");
    }
}

#[test]
fn a_fresh_environment_in_this_folder_needs_no_change_of_folder() {
    let ended = Lab::empty().run(&["init", "."]);
    assert!(ended.stdout.ends_with("\nnext: norfab up\n"), "{ended:?}");
}
