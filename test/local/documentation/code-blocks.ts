// Finds the fenced code blocks of a Markdown text, and what a comment above each says about running it.

/** What `<!-- example: ... -->` above a block says, as words in any order. */
export interface Marker {
  /** `skip`: leave it alone; `compile`: check its types only; `snippet`: the same for a part of a program; else `run`. */
  readonly action: 'run' | 'skip' | 'compile' | 'snippet';
  /** `ranks=N`: run it under `weftline run -n N`. */
  readonly ranks: number | undefined;
  /** `minRanks=N`: the same with `--min-ranks N`. */
  readonly minRanks: number | undefined;
  /** `file=PATH`: the block is this file of the repository, and that file is run. */
  readonly path: string | undefined;
}

export interface CodeBlock {
  /** The document, as given. */
  readonly file: string;
  /** Number of the first line of code, from 1. */
  readonly line: number;
  readonly language: string;
  readonly code: string;
  readonly marker: Marker;
  /** What the program prints, from a block of text right behind it under `<!-- output -->`. */
  readonly output: string | undefined;
}

export function extractCodeBlocks(file: string, markdown: string): CodeBlock[] {
  const lines = markdown.split('\n');
  const blocks: CodeBlock[] = [];
  for (let index = 0; index < lines.length; index += 1) {
    const [, indent, fence, language] = /^(\s*)(`{3,}|~{3,})\s*([\w-]*)/.exec(lines[index] as string) ?? [];
    if (indent === undefined || fence === undefined) continue;
    const first = index + 1;
    // A fence ends with at least as many of the same sign; so ```` may hold ```.
    const isEnd = (line: string): boolean => line.trim().startsWith(fence) && /^(`+|~+)$/.test(line.trim());
    const length = lines.slice(first).findIndex(isEnd);
    if (length === -1) throw new Error(`${file}:${index + 1}: this code block does not end`);
    const code = lines
      .slice(first, first + length)
      .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line))
      .join('\n');
    const comment = commentAbove(lines, index);
    if (comment.text === '<!-- output -->') {
      const program = blocks.pop();
      if (program === undefined) throw new Error(`${file}:${comment.line}: there is no program whose output this is`);
      blocks.push({ ...program, output: code });
    } else {
      const marker = readMarker(file, comment);
      blocks.push({ file, line: first + 1, language: language as string, code, marker, output: undefined });
    }
    index = first + length;
  }
  return blocks;
}

interface Comment {
  readonly text: string;
  readonly line: number;
}

function commentAbove(lines: readonly string[], fence: number): Comment {
  let above = fence - 1;
  while (above >= 0 && (lines[above] as string).trim() === '') above -= 1;
  return { text: (lines[above] ?? '').trim(), line: above + 1 };
}

function readMarker(file: string, { text, line }: Comment): Marker {
  const words = /^<!--\s*example:\s*(.*?)\s*-->$/.exec(text)?.[1]?.split(/\s+/) ?? [];
  let marker: Marker = { action: 'run', ranks: undefined, minRanks: undefined, path: undefined };
  for (const word of words) {
    const [, name, value = ''] = /^(\w+)(?:=(.+))?$/.exec(word) ?? [];
    if ((name === 'skip' || name === 'compile' || name === 'snippet') && value === '')
      marker = { ...marker, action: name };
    else if (name === 'ranks' && Number(value) >= 1) marker = { ...marker, ranks: Number(value) };
    else if (name === 'minRanks' && Number(value) >= 1) marker = { ...marker, minRanks: Number(value) };
    else if (name === 'file' && value !== '') marker = { ...marker, path: value };
    else
      throw new Error(`${file}:${line}: "${word}" is none of skip, compile, snippet, ranks=N, minRanks=N, file=PATH`);
  }
  return marker;
}
