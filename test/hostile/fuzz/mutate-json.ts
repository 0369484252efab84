// Changes JSON as a tree, so that the result is JSON of another shape: other types, missing and doubled keys, great depth.
import type { Random } from './random.ts';

const oddNumbers = [0, -1, 1, 0.5, -0, 255, 65_536, 2 ** 31, 2 ** 32, 2 ** 53, -(2 ** 53), 1e308, 1e-300];
const oddTexts = [
  '',
  '0',
  '-1',
  'a\u0000b',
  '\u001b[2J',
  '\u202e',
  '../../etc/passwd',
  'NaN',
  '0x10',
  '\ud800',
  '[1-9]',
];
const oddKeys = ['__proto__', 'constructor', 'toString', 'length', 'then', '', 'code', 'details', 'cause'];

/** Something that is not JSON comes back as it was. */
export function mutateJson(bytes: Uint8Array, random: Random): Uint8Array {
  let tree: unknown;
  try {
    tree = JSON.parse(Buffer.from(bytes).toString('utf8'));
  } catch {
    return bytes;
  }
  const changes = 1 + random.below(3);
  for (let change = 0; change < changes; change++) tree = changeTree(tree, random);
  let text = JSON.stringify(tree) ?? 'null';
  // Two things that a tree cannot hold: a key twice, numbers out of range.
  if (random.chance(0.05)) text = text.replace('{', '{"x":1,"x":2,');
  if (random.chance(0.05)) text = text.replace(/[0-9]+/, random.pick(['1e999', '-1e999', '00', '1.', '9'.repeat(400)]));
  if (random.chance(0.05)) text = text.replace('{', '{"__proto__":{"polluted":1},');
  return new Uint8Array(Buffer.from(text));
}

function changeTree(node: unknown, random: Random): unknown {
  if (typeof node !== 'object' || node === null || random.chance(0.1)) return oddValue(node, random);
  if (Array.isArray(node)) {
    const list = [...(node as unknown[])];
    const at = random.below(list.length + 1);
    const how = random.below(4);
    if (how === 0) list.splice(at, 1);
    else if (how === 1) list.splice(at, 0, ...(list.length > 0 ? [random.pick(list)] : [oddValue(0, random)]));
    else if (at < list.length) list[at] = changeTree(list[at], random);
    else list.push(oddValue(0, random));
    return list;
  }
  const fields: Record<string, unknown> = { ...node };
  const keys = Object.keys(fields);
  const key = keys.length === 0 ? 'x' : random.pick(keys);
  switch (random.below(6)) {
    case 0:
      delete fields[key];
      return fields;
    case 1:
      fields[random.pick(oddKeys)] = oddValue(fields[key], random);
      return fields;
    case 2:
      fields[key] = fields[random.pick(keys.length === 0 ? ['x'] : keys)];
      return fields;
    default:
      fields[key] = changeTree(fields[key], random);
      return fields;
  }
}

function oddValue(value: unknown, random: Random): unknown {
  switch (random.below(9)) {
    case 0:
      return null;
    case 1:
      return random.pick(oddNumbers);
    case 2:
      return random.pick(oddTexts);
    case 3:
      return random.chance(0.5);
    case 4:
      return random.chance(0.5) ? [] : {};
    case 5:
      return 'x'.repeat(random.pick([1, 255, 256, 1025, 5000]));
    case 6:
      return nested(random.pick([1, 5, 40, 2000]), random.chance(0.5));
    case 7:
      return typeof value === 'number' ? value + random.pick([-1, 1, 0.5, 2 ** 32]) : [value];
    default:
      return typeof value === 'string' ? value.slice(0, random.below(value.length + 1)) + random.pick(oddTexts) : value;
  }
}

function nested(depth: number, inLists: boolean): unknown {
  let value: unknown = 1;
  for (let level = 0; level < depth; level++) value = inLists ? [value] : { a: value };
  return value;
}
