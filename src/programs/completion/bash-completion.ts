// The completion script for bash.
import { allCommands, type CompletionCommand } from './completion-tree.ts';

export function bashCompletion(root: CompletionCommand): string {
  const commands = allCommands(root);
  const below = commands.slice(1).map(({ words }) => `'${words}'`);
  const choices = commands.flatMap(({ words, options }) =>
    options.flatMap(({ long, short, value }) =>
      value === undefined ? [] : [{ flags: short === undefined ? [long] : [long, short], words, value }],
    ),
  );
  return `# Completion of ${root.name} for bash: source <(${root.name} completion bash)
_${root.name}() {
  local current=\${COMP_WORDS[COMP_CWORD]} before=\${COMP_WORDS[COMP_CWORD-1]} place='${root.name}' index
  for ((index = 1; index < COMP_CWORD; index++)); do
    case "$place \${COMP_WORDS[index]}" in
      ${below.join(' | ')}) place="$place \${COMP_WORDS[index]}" ;;
    esac
  done
  COMPREPLY=()
  # A flag that takes a value; without choices bash completes files.
  case "$place $before" in
${choices
  .map(({ words, flags, value }) => {
    const patterns = flags.map((flag) => `'${words} ${flag}'`).join(' | ');
    const reply =
      value.choices.length === 0
        ? ''
        : ` mapfile -t COMPREPLY < <(compgen -W '${value.choices.join(' ')}' -- "$current");`;
    return `    ${patterns})${reply} return ;;`;
  })
  .join('\n')}
  esac
  local names='' flags=''
  case "$place" in
${commands
  .map(({ words, options, commands: own }) => {
    const flags = options.flatMap(({ long, short }) => (short === undefined ? [long] : [long, short]));
    return `    '${words}') names='${own.map(({ name }) => name).join(' ')}' flags='${flags.join(' ')}' ;;`;
  })
  .join('\n')}
  esac
  if [[ $current == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
  elif [[ -n $names ]]; then mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current")
  fi
}
complete -o default -F _${root.name} ${root.name}
`;
}
