import assert from 'node:assert/strict';
import { readdirSync, readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'node:test';
import { WeftlineError } from 'weftline';
import { SafetensorsFile, SafetensorsWriter, writeSafetensors } from '#lib/programs/moe/safetensors-file.js';
import { folderUntilExit } from '../../../support/folder-until-exit.ts';

const folder = folderUntilExit('weftline-safetensors-');
let files = 0;

/** A file with this header text and so many bytes of data; `announced` is the header's length if it shall lie. */
function fileWith(header: string, dataBytes = 0, announced = Buffer.byteLength(header)): string {
  const path = join(folder, `${files++}.safetensors`);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(announced));
  writeFileSync(path, Buffer.concat([length, Buffer.from(header), Buffer.alloc(dataBytes, 1)]));
  return path;
}

async function assertFormatError(path: string, ...words: readonly RegExp[]): Promise<void> {
  await assert.rejects(SafetensorsFile.open(path), (error: unknown) => {
    assert.ok(error instanceof WeftlineError);
    assert.equal(error.code, 'WL_FILE_FORMAT', error.message);
    assert.ok(error.message.includes(path), error.message);
    for (const word of words) assert.match(error.message, word);
    return true;
  });
}

const f32 = (start: number, end: number, shape: readonly number[] = [(end - start) / 4]): object => ({
  dtype: 'F32',
  shape,
  data_offsets: [start, end],
});

test('a written file is read back, whole and by rows, aligned and with its metadata', async () => {
  const path = join(folder, 'round-trip.safetensors');
  const bytes = Uint8Array.from([1, 2, 3]);
  const rows = Float32Array.from({ length: 12 }, (_, index) => index);
  const ids = BigInt64Array.from([-1n, 7n]);
  const tensors = {
    bytes: { dtype: 'U8', shape: [3] },
    rows: { dtype: 'F32', shape: [4, 3] },
    ids: { dtype: 'I64', shape: [2] },
    none: { dtype: 'BF16', shape: [0, 5] },
    scalar: { dtype: 'I32', shape: [] },
  } as const;
  const scalar = Int32Array.from([42]);
  await writeSafetensors({ path, tensors, metadata: { made: 'für den Test' } }, { bytes, rows, ids, scalar });
  await using file = await SafetensorsFile.open(path);
  assert.equal(file.metadata['made'], 'für den Test');
  assert.deepEqual(await file.read('rows', 'f32'), rows);
  assert.deepEqual(await file.read('rows', 'f32', 1, 3), rows.subarray(3, 9));
  assert.deepEqual(await file.read('rows', 'f32', 4, 4), new Float32Array());
  assert.deepEqual(await file.read('ids', 'i64'), ids);
  assert.deepEqual(await file.read('bytes', 'u8'), bytes);
  assert.deepEqual(await file.read('none', 'bf16'), new Uint16Array());
  assert.deepEqual(await file.read('scalar', 'i32'), scalar);
  for (const { start, dtype } of file.tensors.values()) if (dtype !== 'U8') assert.equal(start % 4, 0);
  assert.equal(readFileSync(path).readBigUInt64LE() % 8n, 0n);
});

test('read() names a tensor that is missing, of another type, or rows that do not exist', async () => {
  await using file = await SafetensorsFile.open(fileWith(JSON.stringify({ a: f32(0, 8) }), 8));
  await assert.rejects(file.read('b', 'f32'), { code: 'WL_FILE_FORMAT', message: /no tensor "b"; it has "a"/ });
  await assert.rejects(file.read('a', 'bf16'), { code: 'WL_FILE_FORMAT', message: /"a" is F32, wanted is bf16/ });
  await assert.rejects(file.read('a', 'f32', 1, 3), { code: 'WL_INVALID_ARGUMENT' });
});

test('a file that became shorter after it was opened is an error', async () => {
  const path = fileWith(JSON.stringify({ a: f32(0, 400) }), 400);
  await using file = await SafetensorsFile.open(path);
  truncateSync(path, 200);
  await assert.rejects(file.read('a', 'f32'), { code: 'WL_FILE_FORMAT', message: /"a"/ });
});

test('a closed file says so', async () => {
  const file = await SafetensorsFile.open(fileWith(JSON.stringify({ a: f32(0, 4) }), 4));
  await file.close();
  await file.close();
  await assert.rejects(file.read('a', 'f32'), { code: 'WL_CLOSED' });
});

test('a path that is missing or no file fails with WL_FILE', async () => {
  await assert.rejects(SafetensorsFile.open(join(folder, 'missing')), { code: 'WL_FILE' });
  await assert.rejects(SafetensorsFile.open(folder), { code: 'WL_FILE' });
  await assert.rejects(SafetensorsFile.open('/dev/null'), { code: 'WL_FILE' });
});

test('a truncated or lying length is an error', async () => {
  const path = join(folder, 'short');
  writeFileSync(path, Buffer.alloc(5));
  await assertFormatError(path, /5 bytes/);
  await assertFormatError(fileWith('{}', 0, 3), /announce a header of 3 bytes/);
  await assertFormatError(fileWith('{}', 0, 2 ** 40), /1099511627776/);
  const huge = join(folder, 'huge');
  writeFileSync(huge, Buffer.alloc(16, 0xff));
  await assertFormatError(huge, /18446744073709551615/);
});

test('a header that is no JSON object of unique names is an error', async () => {
  await assertFormatError(fileWith('{"a":'), /not JSON/);
  await assertFormatError(fileWith('[]'), /not a JSON object/);
  await assertFormatError(fileWith('null'), /not a JSON object/);
  await assertFormatError(fileWith('['.repeat(3)), /not JSON/);
  await assertFormatError(fileWith('{"a\u0000":1}'));
  const twice = JSON.stringify(f32(0, 4));
  await assertFormatError(fileWith(`{"a": ${twice}, "\\u0061": ${twice}}`, 4), /"a" twice/);
  await assertFormatError(
    fileWith('{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', 1),
    /"dtype" twice/,
  );
  await assertFormatError(fileWith('{"__metadata__":{"a":1}}'), /__metadata__/);
});

test('a header beyond the limits is refused before it is parsed', async () => {
  await assertFormatError(fileWith('['.repeat(100_000)), /nested more than 3 levels deep, at byte 3/);
  await assertFormatError(fileWith('{"a":'.repeat(1_000_000)), /nested more than 3 levels deep/);
  await assertFormatError(fileWith('{"a":{"shape":[[]]}}'), /nested more than 3 levels deep/);
  await assertFormatError(fileWith(`{"a":{"shape":[${'1,'.repeat(1 << 20)}1]}}`), /more than 1048576 values/);
  await assertFormatError(fileWith(`{${'"a":0,'.repeat(65_538)}"b":0}`), /more than 65536 tensors/);
  await assertFormatError(fileWith('{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,"}}'), /not JSON/);
  const brackets = JSON.stringify({ '[[[[{{{{\\"': { dtype: 'U8', shape: [1], data_offsets: [0, 1] } });
  await using good = await SafetensorsFile.open(fileWith(brackets, 1));
  assert.deepEqual([...good.tensors.keys()], ['[[[[{{{{\\"']);
  // 100 MB of zeros that the disk does not hold; none of them is read.
  const large = fileWith('', 0, 100_000_000);
  truncateSync(large, 100_000_008);
  await assertFormatError(large, /header of 100000000 bytes is longer than the 16777216 that are read/);
});

test('a tensor as large as its sparse file is an error when it is read, not before', async (t) => {
  const bytes = 2 ** 43;
  const path = fileWith(JSON.stringify({ a: { dtype: 'U8', shape: [bytes], data_offsets: [0, bytes] } }));
  try {
    truncateSync(path, readFileSync(path).length + bytes);
  } catch (error) {
    t.skip(`the file system has no sparse files of 8 TiB: ${String(error)}`);
    return;
  }
  await using file = await SafetensorsFile.open(path);
  await assert.rejects(file.read('a', 'u8'), { code: 'WL_MEMORY', message: /to read tensor "a"/ });
});

test('names are shown on one line, escaped and short', async () => {
  const name = `\u001b[31m\n${'x'.repeat(100_000)}`;
  const path = fileWith(JSON.stringify({ [name]: { dtype: 'U8', shape: [2], data_offsets: [0, 1] } }), 1);
  await assertFormatError(path, /"\\u001b\[31m\\u000axxx/);
  const many = Object.fromEntries(
    Array.from({ length: 100 }, (_, index) => [`${index}${name}`, { dtype: 'U8', shape: [0], data_offsets: [0, 0] }]),
  );
  for (const open of [
    () => SafetensorsFile.open(path),
    async () => {
      await using file = await SafetensorsFile.open(fileWith(JSON.stringify(many)));
      await file.read('absent', 'u8');
    },
    () => SafetensorsFile.open(fileWith(JSON.stringify({ a: { ...many, dtype: name } }))),
    () => SafetensorsFile.open(fileWith(JSON.stringify({ __metadata__: { a: [name] } }))),
    () => SafetensorsFile.open(fileWith(`{"a": ${name}}`)),
  ]) {
    const error: unknown = await open().then(
      () => assert.fail('did not fail'),
      (reason: unknown) => reason,
    );
    assert.ok(error instanceof WeftlineError);
    assert.equal(error.code, 'WL_FILE_FORMAT', error.message);
    assert.ok(error.message.length < 2000, error.message);
    // oxlint-disable-next-line no-control-regex -- they must not be there
    assert.doesNotMatch(error.message, /[\u0000-\u001f\u007f]/);
  }
});

test('an entry with a wrong field names the tensor', async () => {
  const good = { dtype: 'F32', shape: [1], data_offsets: [0, 4] };
  const wrong: object[] = [
    { ...good, dtype: '33' },
    { ...good, dtype: 'F33', data_offsets: [4, 0] },
    { ...good, dtype: undefined },
    { ...good, shape: [-1] },
    { ...good, shape: [1.5] },
    { ...good, shape: '1' },
    { ...good, data_offsets: [0] },
    { ...good, data_offsets: [0, 4, 8] },
    { ...good, data_offsets: [4, 0] },
    { ...good, data_offsets: [0, 2 ** 60] },
    { ...good, extra: 1 },
    { ...good, shape: [2] },
    { ...good, shape: [2 ** 50, 2 ** 50] },
    { ...good, shape: Array.from({ length: 33 }, () => 1) },
    { ...good, dtype: 'constructor' },
    [],
  ];
  for (const entry of wrong) await assertFormatError(fileWith(JSON.stringify({ odd: entry }), 4), /"odd"/);
  await assertFormatError(fileWith('{"odd": 3}', 4), /"odd"/);
});

test('a tensor of a type that is not known takes its room, and is refused where it is needed', async () => {
  const odd = { dtype: 'F6_E2M3', shape: [4], data_offsets: [4, 7] };
  await using file = await SafetensorsFile.open(fileWith(JSON.stringify({ a: f32(0, 4), odd }), 7));
  assert.deepEqual([...file.tensors.keys()], ['a']);
  assert.equal((await file.read('a', 'f32')).length, 1);
  await assert.rejects(file.readBytes('odd', new Uint8Array(3), 0), {
    code: 'WL_FILE_FORMAT',
    message:
      /tensor "odd" is of type F6_E2M3, expected one that weftline reads: BF16, F16, F8_E4M3, F32, .*; fetch the model's files in one of these, or convert/,
  });
  await assertFormatError(fileWith(JSON.stringify({ a: f32(0, 4), odd }), 8), /no tensor owns/);
});

test('overlaps, holes and missing data are errors', async () => {
  await assertFormatError(
    fileWith(JSON.stringify({ a: f32(0, 8), b: f32(4, 8) }), 8),
    /"b" overlaps .* 4, expected is 8/,
  );
  await assertFormatError(fileWith(JSON.stringify({ a: f32(0, 4), b: f32(8, 12) }), 12), /"b" leaves a hole/);
  await assertFormatError(fileWith(JSON.stringify({ a: f32(4, 8) }), 8), /"a" leaves a hole/);
  await assertFormatError(fileWith(JSON.stringify({ a: f32(0, 8) }), 7), /cut off.* 8 bytes .* 7/);
  await assertFormatError(fileWith(JSON.stringify({ a: f32(0, 8) }), 9), /no tensor owns/);
});

test('several writers fill one file, which appears when it is committed', async () => {
  const path = join(folder, 'shared.safetensors');
  const plan = { path, tensors: { a: { dtype: 'F32', shape: [3, 2] } }, unique: 'job' } as const;
  await using creator = await SafetensorsWriter.create(plan);
  await using other = await SafetensorsWriter.attach(plan);
  await other.write('a', Float32Array.from([5, 6]), 2);
  await creator.write('a', Float32Array.from([1, 2, 3, 4]));
  await assert.rejects(creator.write('a', new Float32Array(4), 2), { code: 'WL_INVALID_ARGUMENT' });
  await assert.rejects(creator.write('b', new Float32Array(4)), { code: 'WL_INVALID_ARGUMENT' });
  assert.ok(!readdirSync(folder).includes('shared.safetensors'));
  await creator.commit();
  await using file = await SafetensorsFile.open(path);
  assert.deepEqual([...(await file.read('a', 'f32'))], [1, 2, 3, 4, 5, 6]);
});

test('a writer that is not committed leaves nothing, an unwritable place is WL_FILE', async () => {
  const before = readdirSync(folder);
  {
    await using writer = await SafetensorsWriter.create({ path: join(folder, 'gone'), tensors: {} });
    assert.equal(readdirSync(folder).length, before.length + 1);
    void writer;
  }
  assert.deepEqual(readdirSync(folder), before);
  await assert.rejects(writeSafetensors({ path: join(folder, 'no', 'where'), tensors: {} }, {}), { code: 'WL_FILE' });
  await assert.rejects(writeSafetensors({ path: folder, tensors: {} }, {}), { code: 'WL_FILE' });
  assert.deepEqual(readdirSync(folder), before);
});
