//! What is there before a fabric is: help, versions, and what to do without an inventory.

use insta::{allow_duplicates, assert_snapshot};

use crate::support::Lab;

#[test]
fn every_command_has_help_with_its_own_options_first() {
    let lab = Lab::empty();
    let help = lab.run(&["-h"]);
    assert_eq!(help.code, Some(0));
    assert_eq!(help.stderr, "");
    assert!(help.stdout.contains("Exit codes:") && help.stdout.contains("NORFAB_ENDPOINT"), "{}", help.stdout);
    let commands =
        help.stdout.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(
        commands,
        [
            "init",
            "up",
            "broker",
            "worker",
            "run",
            "mmi",
            "files",
            "jobs",
            "cancel",
            "workers",
            "health",
            "tasks",
            "inventory",
            "broker-key",
            "demo",
            "completion",
            "help"
        ]
    );
    for command in commands.iter().filter(|command| **command != "help") {
        let help = lab.run(&[command, "--help"]);
        assert_eq!(help.code, Some(0), "{command}");
        let own = help.stdout.find("\nOptions:").unwrap_or_else(|| panic!("{command}: {}", help.stdout));
        assert!(help.stdout[own..].contains("\nOptions of all commands:"), "{command}: {}", help.stdout);
    }
}

/// The options of a command itself, as its help lists them: `-t, --timeout`.
fn own_options(help: &str) -> Vec<String> {
    let own = help.split("\nOptions:\n").nth(1).unwrap_or_default();
    let own = own.split("\nOptions of all commands:").next().unwrap_or_default();
    let options = own.lines().map(str::trim).filter(|line| line.starts_with('-'));
    let names =
        options.map(|line| line.split([' ', '=', '[']).take_while(|word| word.starts_with('-')).collect::<Vec<_>>());
    names.map(|names| names.join(" ")).filter(|names| !names.contains("--help")).collect()
}

#[test]
fn the_page_of_a_command_has_each_of_its_options_with_the_short_name() {
    let lab = Lab::empty();
    let pages = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands");
    let mut seen = 0;
    for page in pages.read_dir().expect("a folder") {
        let page = page.expect("an entry").path();
        let name = page.file_stem().expect("a name").to_string_lossy().into_owned();
        let command: Vec<&str> = match name.as_str() {
            "README" => continue,
            "files" => vec!["files", "get"],
            "broker-key" => vec!["broker-key"],
            name => name.split('-').collect(),
        };
        let text = std::fs::read_to_string(&page).expect("a text");
        let help = lab.run(&[&command[..], &["-h"]].concat());
        assert_eq!(help.code, Some(0), "{name}: {help:?}");
        for option in own_options(&help.stdout) {
            let shown = option.replace(", ", "`, `");
            assert!(text.contains(&format!("`{shown}")), "{name}.md does not have {option}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen} options");
}

#[test]
fn help_lists_no_options_of_a_fabric_where_none_is_looked_at() {
    let lab = Lab::empty();
    for command in ["init", "demo"] {
        let help = lab.run(&[command, "--help"]);
        assert!(!help.stdout.contains("--endpoint") && !help.stdout.contains("--name"), "{}", help.stdout);
        assert!(help.stdout.contains("--json"), "{}", help.stdout);
    }
    assert!(lab.run(&["workers", "--help"]).stdout.contains("--endpoint"));
    // They are taken all the same: scripts may give them to every command.
    assert_eq!(lab.run(&["--name", "x", "init", "lab", "--endpoint", "tcp://a:1"]).code, Some(0));
}

#[test]
fn the_version_is_that_of_the_package() {
    let ended = Lab::empty().run(&["--version"]);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), concat!("norfab ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn a_wrong_command_line_ends_with_2_on_standard_error() {
    let lab = Lab::empty();
    for arguments in [&["run"][..], &["nonsense"], &["up", "--nonsense"], &["run", "s", "t", "--timeout", "soon"]] {
        let ended = lab.run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}");
        assert_eq!(ended.stdout, "", "{arguments:?}");
        assert!(ended.stderr.starts_with("error: "), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn without_an_inventory_every_command_says_what_to_do() {
    let lab = Lab::empty();
    let told = |arguments: &[&str]| {
        let ended = lab.run(arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""), "{arguments:?}: {ended:?}");
        ended.stderr
    };
    // Where the broker is helps none of these.
    for command in ["up", "broker-key"] {
        allow_duplicates! { assert_snapshot!(told(&[command]), @"error: there is no inventory.yaml here: name one with -i FILE, or make a new environment with 'norfab init DIR'") }
    }
    assert_snapshot!(told(&["broker"]), @"error: there is no inventory.yaml here: name one with -i FILE, make a new environment with 'norfab init DIR', or say where to listen with --endpoint");
    assert_snapshot!(told(&["up", "--endpoint", "tcp://127.0.0.1:1"]), @"error: this needs an inventory, and there is no inventory.yaml here: name one with -i FILE, or make a new environment with 'norfab init DIR'");
    for arguments in [
        &["worker", "w1"][..],
        &["run", "s", "t"],
        &["mmi", "s", "t"],
        &["files", "get", "nf://a"],
        &["jobs"],
        &["jobs", "prune"],
        &["jobs", "export"],
        &["jobs", "import"],
        &["health"],
        &["workers"],
        &["tasks", "s"],
        &["inventory"],
    ] {
        allow_duplicates! { assert_snapshot!(told(arguments), @"error: there is no inventory.yaml here: name one with -i FILE, make a new environment with 'norfab init DIR', or name the broker with --endpoint and --broker-key") }
    }
    assert_eq!(lab.names("."), Vec::<String>::new(), "nothing was made");
}

#[test]
fn the_inventory_is_found_by_option_folder_and_variable() {
    let lab = Lab::empty();
    lab.write("elsewhere/inventory.yaml", "broker:\n  endpoint: tcp://192.0.2.1:5555\n");
    let of = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = lab.command(arguments);
        command.envs(variables.iter().copied());
        crate::support::Role::spawn(command).end()
    };
    let folder = lab.path("elsewhere").display().to_string();
    for (arguments, variables) in [
        (&["inventory", "-i", "elsewhere/inventory.yaml"][..], vec![]),
        (&["inventory", "-i", "elsewhere"], vec![]),
        (&["inventory"], vec![("NORFAB_INVENTORY", "elsewhere/inventory.yaml")]),
        (&["inventory"], vec![("NORFAB_INVENTORY_DIR", folder.as_str())]),
        (&["inventory"], vec![("NORFAB_INVENTORY_DIR", folder.as_str()), ("NORFAB_INVENTORY", "")]),
    ] {
        let ended = of(arguments, &variables);
        assert_eq!(ended.code, Some(0), "{arguments:?} {variables:?}: {ended:?}");
        assert!(ended.stdout.contains("endpoint: tcp://192.0.2.1:5555"), "{}", ended.stdout);
    }
    let ended = of(&["inventory", "-i", "nowhere.yaml"], &[]);
    assert_eq!(ended.code, Some(5));
    assert!(ended.stderr.contains("nowhere.yaml"), "{}", ended.stderr);
}

#[test]
fn an_error_in_the_inventory_names_file_line_and_key() {
    let lab = Lab::new("broker:\n  endpoint: tcp://127.0.0.1:5555\ntopology:\n  broker: maybe\n");
    let ended = lab.run(&["up"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(5), ""));
    assert_snapshot!(ended.stderr, @r#"error: inventory.yaml:4: topology.broker: expected true or false, found text "maybe""#);
}

#[test]
fn output_that_nobody_reads_is_no_panic() {
    use std::process::Stdio;
    let lab = Lab::empty();
    let mut command = lab.command(&["init", "lab"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    command.stdout(Stdio::from(writer.try_clone().expect("a pipe"))).stderr(Stdio::from(writer));
    let ended = crate::support::Role::spawn(command).end();
    assert_eq!(ended.code, Some(0));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = lab.command(&["inventory", "-i", "nowhere"]);
    command.stderr(Stdio::from(writer));
    assert_eq!(crate::support::Role::spawn(command).end().code, Some(5));
}
