//! `norfab completion`: scripts with which shells complete words. They ask [`super::complete`] for everything, so that they need not
//! be made anew with each version.

use crate::args::Shell;
use crate::exit::{Code, Failure};
use crate::printer;

pub fn run(shell: Shell) -> Result<Code, Failure> {
    let script = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
    };
    printer::line(script.trim_end());
    Ok(Code::Ok)
}

/// Bash splits words at colons and equal signs. They are put together again for us, and what stands before the last of these signs
/// is left out of what comes back, because bash keeps it.
const BASH: &str = r#"# Completion of norfab for bash: source this, or keep it as ~/.local/share/bash-completion/completions/norfab
_norfab() {
    local line=${COMP_LINE:0:COMP_POINT} words=() word last candidate kept
    local -i i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if ((i == 0)) || [[ $line == [[:space:]]* ]]; then
            line=${line#"${line%%[![:space:]]*}"}
            words+=("")
        fi
        # The last one, up to where the cursor is.
        ((${#word} > ${#line})) && word=$line
        line=${line#"$word"}
        words[${#words[@]} - 1]+=$word
        last=$word
    done
    word=${words[${#words[@]} - 1]}
    kept=${word%"$last"}
    [[ -n $last && -z ${last//[:=]/} ]] && kept=$word
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$kept"}")
    done < <("$1" __complete bash -- "${words[@]}" 2>/dev/null)
    # The blank behind a word that is complete is part of it.
    ((${#COMPREPLY[@]})) && compopt -o nospace 2>/dev/null
    return 0
}
complete -o bashdefault -o default -F _norfab norfab
"#;

const ZSH: &str = r#"#compdef norfab
# Completion of norfab for zsh: source this behind compinit, or keep it as _norfab in a folder of $fpath
_norfab() {
    local -a whole begun
    local candidate
    while IFS= read -r candidate; do
        if [[ $candidate == *' ' ]]; then
            whole+=("${candidate% }")
        else
            begun+=("$candidate")
        fi
    done < <("${(Q)words[1]}" __complete zsh -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)
    if (( ! ${#whole} && ! ${#begun} )); then
        _files
        return
    fi
    (( ${#whole} )) && compadd -- "${whole[@]}"
    (( ${#begun} )) && compadd -S '' -- "${begun[@]}"
    return 0
}
if [[ ${funcstack[1]} == _norfab ]]; then
    _norfab "$@"
else
    compdef _norfab norfab
fi
"#;

const FISH: &str = r#"# Completion of norfab for fish: source this, or keep it as ~/.config/fish/completions/norfab.fish
function __norfab_complete
    set -l words (commandline -opc)
    set -l found ($words[1] __complete fish -- $words (commandline -ct) 2>/dev/null)
    if test (count $found) -gt 0
        string join \n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c norfab -f -a '(__norfab_complete)'
"#;
