// Boots the guest, runs one command in it, and passes its output on. The guest's root is the host's, read-only.
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { copyFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { makeImage } from './image.mjs';
import { prepareKernel } from './kernel.mjs';

const startScript = fileURLToPath(new URL('guest-start.sh', import.meta.url));
const CONSOLE_KEPT = 16_384;
const OUTPUTS = ['stdout', 'stderr'];

/** Variables of the host that the guest's command gets too. */
const forwarded = /^(?:WEFTLINE|NODE|UCX|IBV|RDMAV)_/;

export class GuestError extends Error {}

/**
 * Runs a command in a new guest and returns its exit status.
 * @param words The command and its arguments.
 * @param options.cache Folder for the kernel.
 * @param options.links `one`: rxe0 on the loopback device; `pair`: rxe0 and rxe1 at the two ends of a wire.
 * @param options.netem Impairment of both directions of the wire, in the words of tc-netem: "loss 1%".
 * @param options.timeoutMs From the start of the guest to its end.
 * @param options.memory, options.processors Of the guest.
 * @param options.stdout, options.stderr Streams that get the command's output.
 * Fails with a GuestError that holds the guest's last words if the guest does not come up or does not end in time.
 */
export async function runInGuest(words, options) {
  const folder = mkdtempSync(join(tmpdir(), 'weftline-soft-roce-'));
  try {
    const kernel = prepareKernel(options.cache);
    const image = join(folder, 'image');
    makeImage(kernel, image);
    const mark = `soft-roce-${randomBytes(8).toString('hex')}`;
    writeScripts(folder, mark, words, options);
    return await boot({ folder, kernel: join(kernel, 'vmlinuz'), image, mark }, options);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function writeScripts(folder, mark, words, { links, netem }) {
  copyFileSync(startScript, join(folder, 'start.sh'));
  const path = [dirname(process.execPath), process.env['PATH'], '/usr/sbin', '/sbin'].join(':');
  const settings = { MARK: mark, LINKS: links, NETEM: netem ?? '', PATH: path, HOME: '/root', TERM: 'dumb' };
  const environment = Object.entries(process.env).filter(([name]) => forwarded.test(name));
  const lines = [...Object.entries(settings), ...environment].map(([name, value]) => `export ${name}=${quoted(value)}`);
  writeFileSync(join(folder, 'settings.sh'), `${lines.join('\n')}\n`);
  const command = words.map(quoted).join(' ');
  writeFileSync(join(folder, 'command.sh'), `cd ${quoted(process.cwd())} && ${command}\n`);
}

function quoted(word) {
  return `'${word.replaceAll("'", "'\\''")}'`;
}

function socketPath(folder, name) {
  return join(folder, `${name}.socket`);
}

/** Passes what one serial line says on to a stream. */
async function listen(path, stream) {
  let connection = Promise.resolve();
  const server = createServer((socket) => {
    // QEMU may be stopped at any time.
    socket.on('error', () => {});
    socket.pipe(stream, { end: false });
    connection = new Promise((resolve) => socket.on('close', resolve));
  });
  await new Promise((resolve, reject) => {
    server.on('error', reject);
    server.listen(path, resolve);
  });
  const end = async () => {
    await connection;
    server.close();
  };
  return { end };
}

/** Three serial lines: the console with the marks, and the command's two outputs. */
function qemuWords({ folder, kernel, image }, { memory, processors }) {
  const append = `console=ttyS0 quiet loglevel=3 mitigations=off nokaslr panic=-1 no_timer_check tsc=reliable clocksource=tsc soft_roce=${folder}`;
  // KVM hangs in some nested machines; translation works everywhere.
  const machine = ['-accel', 'tcg,thread=multi', '-cpu', 'max', '-M', 'q35', '-m', memory, '-smp', String(processors)];
  const start = [
    '-nodefaults',
    '-display',
    'none',
    '-no-reboot',
    '-kernel',
    kernel,
    '-initrd',
    image,
    '-append',
    append,
  ];
  const console = ['-chardev', 'stdio,id=console,signal=off', '-serial', 'chardev:console'];
  const outputs = OUTPUTS.flatMap((name) => {
    return ['-chardev', `socket,id=${name},path=${socketPath(folder, name)}`, '-serial', `chardev:${name}`];
  });
  const root = ['-virtfs', 'local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap'];
  return [...machine, ...start, ...console, ...outputs, ...root];
}

async function boot(files, options) {
  const { mark, folder } = files;
  const outputs = await Promise.all(OUTPUTS.map((name) => listen(socketPath(folder, name), options[name])));
  // The guest ends with this process, however that ends.
  const words = ['--pdeathsig', 'KILL', 'qemu-system-x86_64', ...qemuWords(files, options)];
  const qemu = spawn('setpriv', words, { stdio: ['ignore', 'pipe', 'pipe'] });
  const stop = () => qemu.kill('SIGKILL');
  const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];
  for (const signal of signals) process.on(signal, stop);
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    stop();
  }, options.timeoutMs);
  let said = '';
  for (const stream of [qemu.stdout, qemu.stderr]) {
    stream.setEncoding('utf8').on('data', (text) => {
      said = (said + text).slice(-CONSOLE_KEPT);
      if (said.includes(`${mark} failed`)) stop();
    });
  }
  try {
    await new Promise((resolve, reject) => {
      qemu.on('error', reject);
      qemu.on('close', resolve);
    });
  } finally {
    clearTimeout(timer);
    for (const signal of signals) process.off(signal, stop);
    for (const output of outputs) await output.end();
  }
  const status = new RegExp(`${mark} status (\\d+)`).exec(said)?.[1];
  if (status !== undefined) return Number(status);
  throw new GuestError(whatHappened(said, mark, isLate ? options.timeoutMs : undefined));
}

function whatHappened(said, mark, lateMs) {
  const failed = new RegExp(`${mark} failed (.*)`).exec(said)?.[1];
  const when = said.includes(`${mark} started`) ? 'during the command' : 'before the command began';
  const what =
    failed ?? (lateMs === undefined ? `it ended ${when}` : `it was stopped after ${lateMs / 1000} s, ${when}`);
  const console = said.replaceAll(mark, 'soft-roce').trim();
  return `The guest failed: ${what}${console === '' ? '' : `\nLast lines of its console:\n${console}`}`;
}
