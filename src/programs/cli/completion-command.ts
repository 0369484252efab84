// weftline completion: the script that lets a shell complete commands, flags and choices.
import { Argument, type Command } from 'commander';
import { bashCompletion } from '../completion/bash-completion.ts';
import { completionTree } from '../completion/completion-tree.ts';
import { fishCompletion } from '../completion/fish-completion.ts';
import { zshCompletion } from '../completion/zsh-completion.ts';

const shells = { bash: bashCompletion, zsh: zshCompletion, fish: fishCompletion } as const;

/** `program` must have all its commands. */
export function addCompletionCommand(program: Command): void {
  program
    .command('completion')
    .summary('print a completion script for a shell')
    .description('Prints a script by which the shell completes commands, flags and their choices.')
    .addArgument(new Argument('<shell>').choices(Object.keys(shells)))
    .addHelpText(
      'after',
      `
Examples:
  source <(weftline completion bash)                     in ~/.bashrc
  source <(weftline completion zsh)                      in ~/.zshrc, after compinit
  weftline completion fish | source                      in ~/.config/fish/config.fish`,
    )
    .action((shell: keyof typeof shells) => {
      process.stdout.write(shells[shell](completionTree(program)));
    });
}
