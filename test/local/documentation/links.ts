// The relative links of Markdown documents: each leads to a file of the repository, and to a heading that it has.
import { existsSync, readFileSync, statSync } from 'node:fs';
import { dirname, join, normalize } from 'node:path';

/** How documents that ship with the package name files that do not. */
const repository = 'https://github.com/weftline/weftline/blob/main/';

/** `root` is a folder with a slash at its end, `file` a document in it. Returns what is wrong, a line for each link. */
export function brokenLinks(root: string, file: string): string[] {
  const text = withoutCode(readFileSync(join(root, file), 'utf8'));
  const problems: string[] = [];
  for (const [, target = ''] of text.matchAll(/\]\(([^)\s]+)\)/g)) {
    const isWhole = target.startsWith(repository);
    if (!isWhole && /^[a-z]+:/.test(target)) continue;
    const [path = '', anchor] = (isWhole ? target.slice(repository.length) : target).split('#');
    const aim = path === '' ? file : normalize(isWhole ? path : join(dirname(file), path));
    if (!existsSync(join(root, aim))) problems.push(`${file}: ${target} leads to no file`);
    else if (anchor !== undefined && !headings(join(root, aim)).includes(anchor)) {
      problems.push(`${file}: ${target} leads to no heading`);
    }
  }
  return problems;
}

function headings(path: string): string[] {
  if (statSync(path).isDirectory()) return [];
  return [...withoutCode(readFileSync(path, 'utf8')).matchAll(/^#+ (.*)$/gm)].map(([, title = '']) =>
    title
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );
}

function withoutCode(markdown: string): string {
  return markdown.replaceAll(/^(```+|~~~+)[\s\S]*?^\1\s*$/gm, '');
}
