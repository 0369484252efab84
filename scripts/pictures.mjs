// Writes the pictures of docs/concepts into docs/pictures, as SVG files that are readable in light and dark and on narrow
// screens. With --check it writes nothing, and fails if a picture is not what it would write.
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const folder = fileURLToPath(new URL('../docs/pictures/', import.meta.url));
/** Narrow, so that a telephone shows the words at nearly their size. */
const WIDTH = 480;
const LINE_PX = 17;

const style = `
text { font: 14px system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; fill: #1f2328 }
.small { font-size: 12.5px; fill: #57606a } .strong { font-weight: 600 } .code { font-family: ui-monospace, "Liberation Mono", monospace; font-size: 12.5px }
.page { fill: #ffffff; stroke: #d0d7de } .host { fill: #f6f8fa; stroke: #8c959f } .rank { fill: #ddf4ff; stroke: #0969da }
.memory { fill: #fff8c5; stroke: #9a6700 } .other { fill: #eaeef2; stroke: #57606a } .lost { fill: #ffebe9; stroke: #cf222e }
.line { fill: none; stroke: #57606a; stroke-width: 1.5 } .move { fill: none; stroke: #1a7f37; stroke-width: 2 } .bad { fill: none; stroke: #cf222e; stroke-width: 2 }
.head-line { fill: #57606a } .head-move { fill: #1a7f37 } .head-bad { fill: #cf222e } .dashed { stroke-dasharray: 5 4 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9da7b3 } .page { fill: #0d1117; stroke: #30363d } .host { fill: #161b22; stroke: #6e7681 }
.rank { fill: #0c2d6b; stroke: #58a6ff } .memory { fill: #3b2300; stroke: #d29922 } .other { fill: #21262d; stroke: #9da7b3 } .lost { fill: #490202; stroke: #f85149 }
.line { stroke: #9da7b3 } .move { stroke: #3fb950 } .bad { stroke: #f85149 } .head-line { fill: #9da7b3 } .head-move { fill: #3fb950 } .head-bad { fill: #f85149 } }`;

const escaped = (text) => text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

/** Words with their baseline at y; `|` begins a new line. */
function words(x, y, text, { kind = '', anchor = 'start' } = {}) {
  const lines = text.split('|');
  return lines
    .map((line, at) => {
      const name = kind === '' ? '' : ` class="${kind}"`;
      return `<text x="${x}" y="${y + at * LINE_PX}"${name} text-anchor="${anchor}">${escaped(line)}</text>`;
    })
    .join('\n');
}

/** A box with words in its middle. */
function box(kind, [x, y, width, height], text = '', textKind = '') {
  const lines = text.split('|').length;
  const top = y + height / 2 + 5 - ((lines - 1) * LINE_PX) / 2;
  const label = text === '' ? '' : words(x + width / 2, top, text, { kind: textKind, anchor: 'middle' });
  return `<rect class="${kind}" x="${x}" y="${y}" width="${width}" height="${height}" rx="5"/>\n${label}`;
}

/** A box whose words stand in its upper left corner. */
function area(kind, place, text) {
  const [x, y] = place;
  return `${box(kind, place)}${words(x + 10, y + 20, text, { kind: 'strong' })}`;
}

/** An arrow through points [x, y]; its head is at the last one. */
function arrow(kind, points, { isDashed = false } = {}) {
  const path = points.map(([x, y], at) => `${at === 0 ? 'M' : 'L'}${x} ${y}`).join(' ');
  const dashed = isDashed ? ' dashed' : '';
  return `<path class="${kind}${dashed}" d="${path}" marker-end="url(#${kind})"/>`;
}

function rule([x1, y1, x2, y2], kind = 'line') {
  return `<path class="${kind}" d="M${x1} ${y1} L${x2} ${y2}"/>`;
}

function head(kind) {
  return `<marker id="${kind}" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" markerWidth="11" markerHeight="11" orient="auto-start-reverse"><path class="head-${kind}" d="M0 0 L10 5 L0 10 z"/></marker>`;
}

function picture(height, title, description, ...parts) {
  const begin = `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-labelledby="title description">`;
  const texts = `<title id="title">${escaped(title)}</title>\n<desc id="description">${escaped(description)}</desc>`;
  const heads = ['line', 'move', 'bad'].map(head).join('\n');
  const page = `<rect class="page" x="0.5" y="0.5" width="${WIDTH - 1}" height="${height - 1}" rx="8"/>`;
  return `${[begin, texts, `<style>${style}\n</style>`, `<defs>\n${heads}\n</defs>`, page, ...parts, '</svg>'].join('\n')}\n`;
}

/** Two hosts with two ranks each, one below the other; `notes` stand in the ranks. */
function fourRanks(notes) {
  const ranks = [
    [28, 50],
    [262, 50],
    [28, 270],
    [262, 270],
  ];
  return [
    area('host', [12, 14, 456, 132], 'host 0'),
    area('host', [12, 234, 456, 132], 'host 1'),
    ...ranks.map(([x, y], rank) => box('rank', [x, y, 190, 82], notes[rank])),
  ];
}

const pictures = {
  dispatch: picture(
    380,
    'Dispatch of one token',
    'Rank 0 writes the row into the window of rank 1 on its own host, and sends it once over the network to rank 2 of host 1, which copies it into the window of rank 3.',
    ...fourRanks([
      'rank 0|has the token',
      'rank 1|expert of choice 1',
      'rank 2|expert of choice 2',
      'rank 3|expert of choice 3',
    ]),
    arrow('move', [
      [218, 91],
      [260, 91],
    ]),
    words(239, 83, '1', { kind: 'strong', anchor: 'middle' }),
    arrow('move', [
      [90, 132],
      [90, 268],
    ]),
    words(104, 172, '2', { kind: 'strong' }),
    words(122, 172, 'the row goes once to each other host,|straight into its final place at one rank', {
      kind: 'small',
    }),
    words(122, 214, '(RDMA, or UDP over several paths)', { kind: 'small' }),
    arrow('move', [
      [218, 311],
      [260, 311],
    ]),
    words(239, 303, '3', { kind: 'strong', anchor: 'middle' }),
  ),
  combine: picture(
    380,
    'Combine of one token',
    'Rank 2 adds the rows of its host in 32-bit floats and sends one sum back; rank 0 reads the row of rank 1, adds both, and rounds once.',
    ...fourRanks([
      'rank 0|adds up: host 0, then|host 1; rounds once',
      'rank 1|result of its expert',
      'rank 2|adds the rows of|host 1, in f32',
      'rank 3|result of its expert',
    ]),
    arrow('move', [
      [260, 91],
      [220, 91],
    ]),
    words(239, 83, '3', { kind: 'strong', anchor: 'middle' }),
    arrow('move', [
      [90, 268],
      [90, 134],
    ]),
    words(104, 190, '2', { kind: 'strong' }),
    words(122, 190, 'one sum comes back from each other host', { kind: 'small' }),
    arrow('move', [
      [260, 311],
      [220, 311],
    ]),
    words(239, 303, '1', { kind: 'strong', anchor: 'middle' }),
  ),
  worlds: picture(
    442,
    'A world of four ranks on two hosts',
    'The launcher serves the store, to which every rank is connected. The ranks of a host map the same file of shared memory, in which each has a window.',
    box('other', [130, 14, 220, 50], 'weftline run|serves the store'),
    area('host', [12, 104, 456, 152], 'host 0'),
    area('host', [12, 276, 456, 152], 'host 1'),
    ...[
      [104, 0],
      [276, 2],
    ].flatMap(([y, first]) => [
      ...[0, 1].map((at) => box('rank', [90 + at * 186, y + 14, 166, 44], `rank ${first + at}|a process`)),
      box('memory', [28, y + 84, 424, 56]),
      words(38, y + 104, 'shared memory', { kind: 'small' }),
      box('memory', [150, y + 94, 138, 36], `window of rank ${first}`, 'small'),
      box('memory', [304, y + 94, 138, 36], `window of rank ${first + 1}`, 'small'),
      arrow('move', [
        [150, y + 58],
        [190, y + 92],
      ]),
      arrow('move', [
        [200, y + 58],
        [332, y + 92],
      ]),
      arrow('move', [
        [324, y + 58],
        [252, y + 92],
      ]),
      arrow('move', [
        [380, y + 58],
        [380, y + 92],
      ]),
    ]),
    arrow(
      'line',
      [
        [180, 118],
        [180, 66],
      ],
      { isDashed: true },
    ),
    arrow(
      'line',
      [
        [300, 118],
        [300, 66],
      ],
      { isDashed: true },
    ),
    arrow(
      'line',
      [
        [88, 312],
        [6, 312],
        [6, 40],
        [128, 40],
      ],
      { isDashed: true },
    ),
    arrow(
      'line',
      [
        [444, 312],
        [474, 312],
        [474, 40],
        [352, 40],
      ],
      { isDashed: true },
    ),
    words(240, 90, 'TCP', { kind: 'small', anchor: 'middle' }),
  ),
  agent: picture(
    404,
    'A transfer between two agents',
    'Agent a chooses the first backend that both have and that reaches the memory of b; the data go straight into that memory, and the notification comes behind them.',
    area('host', [12, 14, 456, 134], 'process a'),
    box('memory', [28, 50, 116, 82], 'its memory'),
    box('rank', [160, 50, 292, 82], 'agent a|finds both sides of each|descriptor, chooses a backend'),
    box('other', [28, 166, 100, 64], 'local|same host', 'small'),
    box('other', [136, 166, 100, 64], 'verbs|RDMA device', 'small'),
    box('other', [244, 166, 100, 64], 'ucx|libucp', 'small'),
    box('other', [352, 166, 100, 64], 'multipath|UDP, always', 'small'),
    ...[78, 186, 294, 402].map((x) => rule([x, 148, x, 166])),
    ...[78, 186, 294].map((x) => rule([x, 230, x, 248])),
    area('host', [12, 248, 456, 142], 'process b'),
    box('memory', [28, 284, 190, 90], 'its memory|registered: address,|size and key are known', 'small'),
    box('rank', [262, 284, 190, 90], 'agent b|does nothing meanwhile', 'small'),
    arrow('move', [
      [402, 230],
      [402, 262],
      [123, 262],
      [123, 282],
    ]),
    words(130, 279, '1 data', { kind: 'small' }),
    arrow('move', [
      [430, 230],
      [430, 282],
    ]),
    words(318, 279, '2 notification', { kind: 'small' }),
  ),
  deadline: picture(
    358,
    'How a wait ends',
    'Three waits of rank 0 for rank 1: rank 1 comes and the call goes on; rank 1 dies and the call fails at once; rank 1 never comes and the call fails at the deadline.',
    ...[
      ['rank 1 comes', 'move', 250, 'the call goes on'],
      ['rank 1 ends or is killed', 'bad', 190, 'WL_PEER_LOST, at once'],
      ['rank 1 does not come', 'bad', 420, 'WL_TIMEOUT, names rank 1'],
    ].flatMap(([title, kind, end, result], at) => {
      const y = 20 + at * 104;
      return [
        words(20, y + 12, title, { kind: 'strong' }),
        words(20, y + 46, 'rank 0', { kind: 'small' }),
        box('rank', [70, y + 28, end - 70, 26], end - 70 > 100 ? 'waits' : '', 'small'),
        rule([420, y + 22, 420, y + 84], 'line dashed'),
        words(20, y + 78, 'rank 1', { kind: 'small' }),
        kind === 'move'
          ? arrow('move', [
              [70, y + 73],
              [248, y + 73],
              [250, y + 56],
            ])
          : at === 1
            ? `${rule([70, y + 73, 182, y + 73])}${box('lost', [183, y + 66, 14, 14])}${arrow('bad', [
                [190, y + 66],
                [190, y + 56],
              ])}`
            : rule([70, y + 73, 420, y + 73], 'line dashed'),
        at === 2 ? words(412, y + 14, result, { anchor: 'end' }) : words(end + 10, y + 46, result),
      ];
    }),
    words(420, 342, 'deadline', { kind: 'small', anchor: 'middle' }),
    arrow('line', [
      [70, 326],
      [462, 326],
    ]),
    words(70, 342, 'time', { kind: 'small' }),
  ),
};

const isCheck = process.argv.includes('--check');
mkdirSync(folder, { recursive: true });
let isStale = false;
for (const [name, text] of Object.entries(pictures)) {
  const path = `${folder}${name}.svg`;
  if (!isCheck) writeFileSync(path, text);
  else if (!existsSync(path) || readFileSync(path, 'utf8') !== text) {
    console.error(`docs/pictures/${name}.svg is out of date: run "node scripts/pictures.mjs"`);
    isStale = true;
  }
}
process.exit(isStale ? 1 : 0);
