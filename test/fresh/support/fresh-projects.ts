// Empty projects that install the package as users do, and the tools that look at it there.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../../../..', import.meta.url));
const toolFolder = join(root, 'build/fresh-tools');
/** A machine that runs other tests beside takes minutes to install and build. */
const TIMEOUT_MS = 600_000;

interface Outcome {
  readonly exitCode: number | null;
  readonly output: string;
}

/** Runs a program to its end; `output` is what it wrote to stdout and stderr. */
function run(folder: string, program: string, args: readonly string[]): Promise<Outcome> {
  return new Promise((resolve, reject) => {
    // Variables of npm and of the test runner are not those of a user's shell.
    const kept = Object.entries(process.env).filter(([name]) => !/^(?:npm_|NODE_TEST|WEFTLINE_)/.test(name));
    const child = spawn(program, args, {
      cwd: folder,
      env: { ...Object.fromEntries(kept), XDG_CACHE_HOME: join(folder, '.cache') },
      stdio: ['ignore', 'pipe', 'pipe'],
      timeout: TIMEOUT_MS,
    });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => (output += text));
    }
    child.once('error', reject);
    child.once('close', (exitCode) => resolve({ exitCode, output }));
  });
}

/** The same for what must succeed; returns the output. */
export async function mustRun(folder: string, program: string, args: readonly string[]): Promise<string> {
  const { exitCode, output } = await run(folder, program, args);
  assert.equal(exitCode, 0, `${program} ${args.join(' ')}\n${output}`);
  return output;
}

/** Installs the tools that the lock file beside names, unless they are there. */
export async function installTools(): Promise<void> {
  const source = join(root, 'test/fresh/tools');
  const lock = readFileSync(join(source, 'package-lock.json'), 'utf8');
  const stamp = join(toolFolder, 'installed');
  if (existsSync(stamp) && readFileSync(stamp, 'utf8') === lock) return;
  rmSync(toolFolder, { recursive: true, force: true });
  mkdirSync(toolFolder, { recursive: true });
  for (const name of ['package.json', 'package-lock.json']) copyFileSync(join(source, name), join(toolFolder, name));
  await mustRun(toolFolder, 'npm', ['ci', '--ignore-scripts', '--silent']);
  writeFileSync(stamp, lock);
}

export function tool(path: string): string {
  return join(toolFolder, 'node_modules', path);
}

function git(...args: readonly string[]): string {
  const { status, stdout, stderr } = spawnSync('git', args, { cwd: root, encoding: 'utf8', maxBuffer: 1 << 26 });
  assert.equal(status, 0, stderr);
  return stdout;
}

/** A clean clone of what the working tree holds, committed or not, with nothing that git ignores. */
export function cloneTree(folder: string): void {
  for (const name of git('ls-files', '-z', '--cached', '--others', '--exclude-standard').split('\0')) {
    if (name === '' || !existsSync(join(root, name))) continue;
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    copyFileSync(join(root, name), join(folder, name));
  }
  git('-C', folder, 'init', '--quiet');
  git('-C', folder, 'add', '--all');
  git('-C', folder, '-c', 'user.name=t', '-c', 'user.email=t@t', 'commit', '--quiet', '--message', 'tree');
}

/** An empty project with these files that has installed the package. Returns its folder. */
export async function freshProject(
  folder: string,
  files: Readonly<Record<string, string>>,
  install: readonly string[],
): Promise<string> {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  await mustRun(folder, 'npm', ['install', '--silent', ...install]);
  return folder;
}
