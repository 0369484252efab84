// The file by which processes of one user recognize each other: made once, and never believed if it could be another's.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname } from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import {
  credentialsOf,
  derive,
  readSecretIn,
  readUserSecret,
  tokenCredential,
  userCredential,
} from '#lib/meeting/credentials.js';

const uid = process.geteuid?.() ?? 0;
const notRoot = uid === 0 ? false : 'only root can give files to other users';
const ofRoot = uid === 0 ? 'nothing is unwritable for root' : false;

function withFolder(use: (folder: string) => void): void {
  const parent = mkdtempSync(`${tmpdir()}/weftline-test-`);
  try {
    use(`${parent}/folder`);
  } finally {
    rmSync(parent, { recursive: true, force: true });
  }
}

function refuses(folder: string, why: RegExp): void {
  assert.throws(
    () => readSecretIn(folder, uid),
    (error: NodeJS.ErrnoException) => {
      assert.equal(error.code, 'WL_CONFIG', error.message);
      assert.match(error.message, why);
      assert.match(error.message, /Remove it.*openssl rand -hex 32.*WEFTLINE_TOKEN/);
      return true;
    },
  );
}

test('the secret is made once, for the user alone, and again when it was removed', () => {
  withFolder((folder) => {
    const first = readSecretIn(folder, uid);
    assert.equal(first.bytes.length, 32);
    assert.deepEqual(readSecretIn(folder, uid).bytes, first.bytes);
    assert.equal(statSync(folder).mode & 0o777, 0o700);
    assert.equal(statSync(first.path).mode & 0o777, 0o600);
    assert.deepEqual(readdirSync(folder), ['secret']);
    rmSync(first.path);
    assert.notDeepEqual(readSecretIn(folder, uid).bytes, first.bytes);
    rmSync(folder, { recursive: true });
    assert.equal(readSecretIn(folder, uid).bytes.length, 32);
  });
});

test('a umask that takes rights away does not matter', () => {
  withFolder((folder) => {
    const before = process.umask(0o277);
    try {
      mkdirSync(folder);
      chmodSync(folder, 0o700);
      assert.equal(readSecretIn(folder, uid).bytes.length, 32);
    } finally {
      process.umask(before);
    }
    assert.equal(statSync(`${folder}/secret`).mode & 0o777, 0o600);
  });
});

test('what others may have read or changed is not believed', () => {
  const cases: readonly (readonly [RegExp, (folder: string) => void])[] = [
    [/folder, .*its mode is 0755, expected 0700/, (folder) => chmodSync(folder, 0o755)],
    [/secret, .*its mode is 0640, expected 0600/, (folder) => chmodSync(`${folder}/secret`, 0o640)],
    [/it must have 32 bytes/, (folder) => writeFileSync(`${folder}/secret`, 'short')],
    [/it must have 32 bytes/, (folder) => writeFileSync(`${folder}/secret`, Buffer.alloc(33))],
    [/it must have 32 bytes/, (folder) => writeFileSync(`${folder}/secret`, '')],
    [
      /it is a symbolic link/,
      (folder) => {
        const elsewhere = `${dirname(folder)}/elsewhere`;
        writeFileSync(elsewhere, Buffer.alloc(32), { mode: 0o600 });
        rmSync(`${folder}/secret`);
        symlinkSync(elsewhere, `${folder}/secret`);
      },
    ],
    [
      /it is not a regular file/,
      (folder) => {
        rmSync(`${folder}/secret`);
        mkdirSync(`${folder}/secret`, { mode: 0o700 });
      },
    ],
    [
      /it is (not a folder|a symbolic link)/,
      (folder) => {
        rmSync(folder, { recursive: true });
        mkdirSync(`${dirname(folder)}/real`, { mode: 0o700 });
        symlinkSync(`${dirname(folder)}/real`, folder);
      },
    ],
    [
      /it is not a folder/,
      (folder) => {
        rmSync(folder, { recursive: true });
        writeFileSync(folder, '', { mode: 0o600 });
      },
    ],
  ];
  for (const [why, spoil] of cases) {
    withFolder((folder) => {
      readSecretIn(folder, uid);
      spoil(folder);
      refuses(folder, why);
    });
  }
});

test('what belongs to another user is not believed', { skip: notRoot }, () => {
  for (const name of ['', '/secret']) {
    withFolder((folder) => {
      readSecretIn(folder, uid);
      chownSync(folder + name, 65_534, 65_534);
      refuses(folder, /it belongs to user 65534, not to user 0/);
    });
  }
});

test('a folder that cannot be written to is told', { skip: ofRoot }, () => {
  withFolder((folder) => {
    mkdirSync(folder, { mode: 0o500 });
    refuses(folder, /EACCES/);
  });
});

test('processes that make it at the same time agree', async () => {
  const parent = mkdtempSync(`${tmpdir()}/weftline-test-`);
  try {
    const module = import.meta.resolve('#lib/meeting/credentials.js');
    const script = `const { readSecretIn } = await import(${JSON.stringify(module)});
      console.log(Buffer.from(readSecretIn(${JSON.stringify(`${parent}/folder`)}, ${uid}).bytes).toString('hex'));`;
    const run = promisify(execFile);
    const runs = Array.from({ length: 8 }, () => run(process.execPath, ['--input-type=module', '--eval', script]));
    const secrets = (await Promise.all(runs)).map(({ stdout }) => stdout.trim());
    assert.match(secrets[0] ?? '', /^[0-9a-f]{64}$/);
    assert.equal(new Set(secrets).size, 1);
    assert.deepEqual(readdirSync(`${parent}/folder`), ['secret']);
  } finally {
    rmSync(parent, { recursive: true });
  }
});

test('the place does not depend on the environment, and nothing is left in /dev/shm', async () => {
  const { path, bytes } = readUserSecret();
  const module = import.meta.resolve('#lib/meeting/credentials.js');
  const script = `const { readUserSecret } = await import(${JSON.stringify(module)});
    const { path, bytes } = readUserSecret();
    console.log(path, Buffer.from(bytes).toString('hex'));`;
  const env = { HOME: '/nowhere', TMPDIR: '/nowhere', XDG_RUNTIME_DIR: '/nowhere', USER: 'nobody' };
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '--eval', script], { env });
  assert.equal(stdout.trim(), `${path} ${Buffer.from(bytes).toString('hex')}`);
  assert.ok(!path.startsWith('/dev/shm'));
});

test('keys of tokens and of users, of scopes and of purposes differ', () => {
  const bytes = Buffer.alloc(32, 7);
  const secret = { path: '', bytes };
  const keys = [
    tokenCredential(bytes.toString('latin1')).key,
    tokenCredential('other').key,
    userCredential(secret).key,
    userCredential(secret, 'job').key,
    derive(bytes, '', 'a'),
    derive(bytes, '', 'b'),
  ].map((key) => Buffer.from(key).toString('hex'));
  assert.equal(new Set(keys).size, keys.length);
  assert.deepEqual([credentialsOf('').kind, credentialsOf('x').kind], ['user', 'token']);
});
