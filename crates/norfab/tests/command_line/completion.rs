//! Completion in shells.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Ended, Lab, OnTerminal, Role};

/// A shell in the lab's folder that finds the binary and the broker.
fn bash(lab: &Lab) -> Command {
    let ours = lab.command(&[]);
    let folder = std::path::Path::new(ours.get_program()).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["--noprofile", "--norc"]).current_dir(lab.path("."));
    for (name, value) in ours.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("PATH", format!("{}:{path}", folder.display()));
    shell
}

/// What bash completes where words were typed as it splits them.
fn completed(lab: &Lab, line: &str, words: &[&str]) -> Vec<String> {
    let script = r#"
        source <(norfab completion bash)
        COMP_LINE=$1; COMP_POINT=${#1}; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _norfab norfab
        printf '%s|\n' "${COMPREPLY[@]}"
    "#;
    let mut shell = bash(lab);
    shell.arg("-c").arg(script).arg("bash").arg(line).args(words);
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ended { stdout, stderr, .. } = Role::spawn(shell).end();
    assert_eq!(stderr, "", "{line}");
    stdout.lines().map(|line| line.trim_end_matches('|').to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    let lab = Lab::empty();
    assert_eq!(completed(&lab, "norfab fi", &["norfab", "fi"]), ["files "]);
    assert_eq!(completed(&lab, "norfab files t", &["norfab", "files", "t"]), ["tree "]);
    assert_eq!(completed(&lab, "norfab files tree --de", &["norfab", "files", "tree", "--de"]), ["--depth "]);
    assert_eq!(completed(&lab, "norfab run --events j", &["norfab", "run", "--events", "j"]), ["json "]);
    assert_eq!(completed(&lab, "norfab run --events=t", &["norfab", "run", "--events", "=", "t"]), ["text "]);
    assert_eq!(completed(&lab, "norfab completion f", &["norfab", "completion", "f"]), ["fish "]);
    assert_eq!(completed(&lab, "norfab __", &["norfab", "__"]), [""; 0]);
}

#[test]
fn bash_completes_remote_paths_and_names_of_workers() {
    let (lab, _up) = Lab::up();
    for name in ["d/a.txt", "d/my file", "d/sub/x", "d/odd$name", "d/c\u{1b}", "e=f/g"] {
        lab.write(&format!("shared/{name}"), "");
    }
    let of = |line: &str, words: &[&str]| completed(&lab, line, words);
    assert_eq!(of("norfab files get ", &["norfab", "files", "get", ""]), ["nf://"]);
    assert_eq!(of("norfab files get nf:", &["norfab", "files", "get", "nf", ":"]), ["//"]);
    assert_eq!(of("norfab files ls nf://", &["norfab", "files", "ls", "nf", ":", "//"]), ["//d/", "//e=f/"]);
    let expected = ["//d/a.txt ", "//d/my\\ file ", "//d/odd\\$name ", "//d/sub/"];
    assert_eq!(of("norfab files stat nf://d/", &["norfab", "files", "stat", "nf", ":", "//d/"]), expected);
    let words = ["norfab", "files", "stat", "nf", ":", "//x", "nf", ":", "//d/my\\ "];
    assert_eq!(of("norfab files stat nf://x nf://d/my\\ ", &words), ["//d/my\\ file "]);
    assert_eq!(of("norfab files ls \"nf://d/m", &["norfab", "files", "ls", "\"nf://d/m"]), ["nf://d/my file "]);
    assert_eq!(of("norfab files ls nf://e=f/", &["norfab", "files", "ls", "nf", ":", "//e", "=", "f/"]), ["f/g "]);
    assert_eq!(of("norfab files ls -w f", &["norfab", "files", "ls", "-w", "f"]), ["filesharing-worker-1"]);
    assert_eq!(of("norfab run fi", &["norfab", "run", "fi"]), ["filesharing "]);
    assert_eq!(of("norfab tasks filesharing list_f", &["norfab", "tasks", "filesharing", "list_f"]), ["list_files "]);
    assert_eq!(of("norfab files ls nf://nope/", &["norfab", "files", "ls", "nf", ":", "//nope/"]), [""; 0]);
}

#[test]
fn tab_in_a_shell_on_a_terminal_completes_a_remote_path() {
    let (lab, _up) = Lab::up();
    lab.write("shared/folder/long file name.txt", "content of it\n");
    let mut shell = bash(&lab);
    shell.env("PS1", "$ ").env("TERM", "dumb").env("INPUTRC", "/dev/null").arg("-i");
    let mut terminal = OnTerminal::start_all(shell);
    terminal.types("source <(norfab completion bash); echo rea''dy\n");
    terminal.shows("\nready\n");
    terminal.types("norfab files get nf://fo\tlo\t-\n");
    terminal.shows("nf://folder/long\\ file\\ name.txt -");
    terminal.shows("\ncontent of it\n");
    terminal.types("exit\n");
    let (ended, shown) = terminal.end();
    assert_eq!(ended.code, Some(0), "{shown}");
}

#[test]
fn nothing_is_said_where_nobody_answers_and_soon() {
    let lab = Lab::empty();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("tcp://{}", silent.local_addr().expect("an address"));
    for endpoint in [silent.as_str(), "tcp://127.0.0.1:1", "nonsense"] {
        let began = Instant::now();
        let words = [
            "__complete",
            "bash",
            "--",
            "norfab",
            "--endpoint",
            endpoint,
            "--broker-key",
            "none",
            "files",
            "ls",
            "nf://",
        ];
        let ended = lab.run(&words);
        assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "", ""), "{endpoint}");
        assert!(began.elapsed() < Duration::from_secs(5), "{endpoint}: {:?}", began.elapsed());
    }
}

#[test]
fn every_shell_has_a_script_that_asks_the_command() {
    let lab = Lab::empty();
    for shell in ["bash", "zsh", "fish"] {
        let script = lab.run(&["completion", shell]).stdout;
        assert!(script.contains(&format!("__complete {shell} -- ")), "{script}");
    }
    assert_eq!(lab.run(&["completion", "tcsh"]).code, Some(2));
}
