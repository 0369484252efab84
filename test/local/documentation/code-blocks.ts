// Finds the fenced code blocks of a Markdown text, and what a comment above each says about running it.

export interface CodeBlock {
  /** Of the document, as given. */
  readonly file: string;
  /** Line of the first line of code, from 1. */
  readonly line: number;
  readonly language: string;
  readonly code: string;
  /** From `<!-- example: ... -->` above the block: 'skip', 'compile' or 'ranks=N'; 'run' without one. */
  readonly marker: 'run' | 'skip' | 'compile' | { readonly ranks: number };
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
    blocks.push({
      file,
      line: first + 1,
      language: language as string,
      code: lines
        .slice(first, first + length)
        .map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line))
        .join('\n'),
      marker: readMarker(file, lines, index),
    });
    index = first + length;
  }
  return blocks;
}

function readMarker(file: string, lines: readonly string[], fence: number): CodeBlock['marker'] {
  let above = fence - 1;
  while (above >= 0 && (lines[above] as string).trim() === '') above -= 1;
  const word = /^<!--\s*example:\s*(.*?)\s*-->$/.exec((lines[above] ?? '').trim())?.[1];
  if (word === undefined) return 'run';
  if (word === 'skip' || word === 'compile') return word;
  const ranks = Number(/^ranks=(\d+)$/.exec(word)?.[1]);
  if (ranks >= 1) return { ranks };
  throw new Error(`${file}:${above + 1}: "${word}" is none of skip, compile, ranks=N`);
}
