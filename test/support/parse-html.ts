// Parses HTML into a document without a browser. The package's own types need those of one.
interface Element {
  readonly textContent: string | null;
  getAttribute(name: string): string | null;
  querySelectorAll(selector: string): Iterable<Element> & { readonly length: number };
}

export interface ParsedPage {
  readonly document: {
    readonly documentElement: Element;
    querySelectorAll(selector: string): Iterable<Element> & { readonly length: number };
  };
  readonly window: unknown;
}

const PACKAGE: string = 'linkedom';

const { parseHTML } = (await import(PACKAGE)) as { parseHTML: (html: string) => ParsedPage };

export { parseHTML };
