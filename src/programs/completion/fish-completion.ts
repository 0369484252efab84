// The completion script for fish.
import { allCommands, type CompletionCommand, type CompletionOption } from './completion-tree.ts';

export function fishCompletion(root: CompletionCommand): string {
  const commands = allCommands(root);
  const below = commands.slice(1).map(({ words }) => quoted(words));
  return `# Completion of ${root.name} for fish: ${root.name} completion fish | source
function __${root.name}_place
    set -l place ${root.name}
    for word in (commandline -opc)[2..-1]
        switch "$place $word"
            case ${below.join(' ')}
                set place "$place $word"
        end
    end
    echo $place
end
function __${root.name}_at
    test (__${root.name}_place) = "$argv"
end
${commands.flatMap((command) => lines(root.name, command)).join('\n')}
`;
}

function lines(program: string, { words, options, commands }: CompletionCommand): string[] {
  const at = `complete -c ${program} -n ${quoted(`__${program}_at ${words}`)}`;
  return [
    ...commands.map(({ name, description }) => `${at} -f -a ${quoted(name)} -d ${quoted(description)}`),
    ...options.map((option) => `${at} ${flagsOf(option)}${valueOf(option)} -d ${quoted(option.description)}`),
  ];
}

function flagsOf({ long, short }: CompletionOption): string {
  return `-l ${long.slice(2)}${short === undefined ? '' : ` -s ${short.slice(1)}`}`;
}

/** -x: a value that is no file; -r: any value, files are offered. */
function valueOf({ value }: CompletionOption): string {
  if (value === undefined) return '';
  return value.choices.length === 0 ? ' -r' : ` -x -a ${quoted(value.choices.join(' '))}`;
}

function quoted(text: string): string {
  return `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
}
