// Writes docs/reference/ from what is built: settings, error and exit codes, commands with their flags.
// With --check it writes nothing, and fails if a page is not what it would write.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

// Defaults are the settings' own, whoever runs this.
for (const name of Object.keys(process.env)) if (name.startsWith('WEFTLINE_')) delete process.env[name];

const root = fileURLToPath(new URL('..', import.meta.url));
/** How documents that ship with the package name files that do not. */
const repository = 'https://github.com/weftline/weftline/blob/main/';
const notice = '<!-- Written by scripts/reference.mjs from the code: change it there. -->';

function page(title, ...parts) {
  return `# ${title}\n\n${notice}\n\n${parts.join('\n\n')}\n`;
}

function line(cells) {
  return `| ${cells.map((cell) => String(cell).replaceAll('|', '\\|')).join(' | ')} |`;
}

function table(head, rows) {
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n');
}

function rangeOf(setting) {
  if (setting.kind === 'number')
    return `${setting.leastButZero === undefined ? setting.min : `0, ${setting.leastButZero}`} to ${setting.max} ${setting.unit}`;
  if (setting.kind === 'choice') return setting.choices.map((choice) => `\`${choice}\``).join(', ');
  return setting.kind === 'boolean' ? '0 or 1' : 'text';
}

function defaultOf({ kind, default: value }) {
  if (kind === 'boolean') return value ? 1 : 0;
  if (kind === 'number') return value;
  return value === '' ? 'empty' : `\`${value}\``;
}

/** Variables that a command has a flag for. */
function* variablesOf(command) {
  for (const { envVar } of command.options) if (envVar !== undefined) yield envVar;
  for (const sub of command.commands) yield* variablesOf(sub);
}

function settingRows(settings, variables) {
  return table(
    ['setting', 'variable', 'flag', 'values', 'default', 'what it does'],
    settings.map(([name, setting]) => [
      `\`${name}\``,
      `\`${setting.env}\``,
      variables.has(setting.env) ? `\`${setting.flag}\`` : '',
      rangeOf(setting),
      defaultOf(setting),
      setting.sentence,
    ]),
  );
}

function isOfTransport([name]) {
  return name.startsWith('transport');
}

async function settingsPage() {
  const { settingsTable } = await import('../dist/settings/settings.js');
  const { createProgram } = await import('../dist/programs/cli/program.js');
  const all = Object.entries(settingsTable);
  const variables = new Set(variablesOf(await createProgram()));
  return page(
    'Settings',
    'A setting is read from the option `settings` of `join()`, `Agent.create()`, `Transport.create()` and others, by its name; else from its environment variable; else it has its default. Commands take those as flags that concern them ([Commands](commands.md)); where the column is empty, no command has a flag for it: set the variable. A value outside its range fails with `WL_CONFIG`.',
    `\`WEFTLINE_TOKEN\`, which is no setting, is the token that peers must hold in common: [SECURITY.md](../../SECURITY.md). Launchers pass each rank \`WEFTLINE_RANK\`, \`WEFTLINE_WORLD_SIZE\` and their like: [src/world](${repository}src/world/README.md).`,
    '## General',
    settingRows(
      all.filter((entry) => !isOfTransport(entry)),
      variables,
    ),
    '## Transport',
    settingRows(all.filter(isOfTransport), variables),
  );
}

async function errorsPage() {
  const { errorCodes } = await import('../dist/core/errors.js');
  const { exitCodes } = await import('../dist/programs/cli/exit-codes.js');
  const parts = [
    'What fails throws a `WeftlineError`. Its `code` is one of these and never changes meaning; `message` says what failed, with which value, what was expected and what to do; `details` holds the values; `cause` what lay behind it; `rank` where the error began, if it came from another rank.',
    '## Error codes',
    table(
      ['code', 'stands for'],
      Object.entries(errorCodes).map(([code, meaning]) => [`\`${code}\``, meaning]),
    ),
    '## Exit codes',
    table(
      ['exit code', 'of a command'],
      Object.values(exitCodes).map(({ code, meaning }) => [code, meaning]),
    ),
  ];
  return page('Error codes and exit codes', ...parts);
}

async function metricsPage() {
  const { metricTable } = await import('../dist/core/metric-table.js');
  const { tracingChannelNames } = await import('../dist/core/call-channels.js');
  return page(
    'Metrics',
    'Names, labels and units follow Prometheus: seconds, bytes, counters end with `_total`. Every series also carries `rank`, `local_rank`, `job_id`, `hostname` and `pid` of the process that serves it. How to get them: [Watching a job](../guides/watching.md#metrics). Histograms have buckets at 1, 2.5 and 5 of each decade from 1 µs to 50 s; summaries have a sum and a count. Histograms, `weftline_ep_wait_seconds` and metrics of agents are there only while times are collected.',
    table(
      ['metric', 'kind', 'labels', 'what it says'],
      Object.entries(metricTable).map(([name, { kind, labels, help }]) => [
        `\`${name}\``,
        kind,
        labels.map((label) => `\`${label}\``).join(', '),
        help,
      ]),
    ),
    '## Tracing channels',
    'Of `node:diagnostics_channel`. Those of calls tell `object`, `call`, `number` and `ranks`, that of transfers `agent`, `peer`, `operation`, `backend` and `bytes`; `error` once it is known.',
    tracingChannelNames.map((name) => `- \`${name}\``).join('\n'),
  );
}

/** What --help prints, in the width that it has without a terminal. */
function helpOf(command) {
  let text = '';
  command.configureOutput({ writeOut: (part) => (text += part), getOutHelpWidth: () => undefined });
  command.outputHelp();
  return text.trimEnd();
}

/** A section for the command and for each of its subcommands. */
function* commandSections(command, words) {
  yield `## ${words.join(' ')}`;
  yield `\`\`\`text\n${helpOf(command)}\n\`\`\``;
  for (const sub of command.commands) yield* commandSections(sub, [...words, sub.name()]);
}

async function commandsPage() {
  const { createProgram } = await import('../dist/programs/cli/program.js');
  return page(
    'Commands',
    'In a project, `npx weftline`; in a clone, `node dist/programs/cli/main.js` after `npm run build`. Exit codes: [Error codes and exit codes](errors.md).',
    ...commandSections(await createProgram(), ['weftline']),
  );
}

const pages = {
  settings: await settingsPage(),
  errors: await errorsPage(),
  metrics: await metricsPage(),
  commands: await commandsPage(),
};
const isCheck = process.argv.includes('--check');
const folder = `${root}docs/reference`;
mkdirSync(folder, { recursive: true });
for (const [name, text] of Object.entries(pages)) {
  const path = `${folder}/${name}.md`;
  if (!isCheck) writeFileSync(path, text);
  else if (!existsSync(path) || readFileSync(path, 'utf8') !== text) {
    console.error(`docs/reference/${name}.md is not what the code says: run node scripts/reference.mjs after a build`);
    process.exitCode = 1;
  }
}
