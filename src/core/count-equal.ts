// Equal texts counted: "4 x NVIDIA H200".

export function countEqual(texts: readonly string[]): string {
  return [...new Set(texts)].map((text) => `${texts.filter((other) => other === text).length} x ${text}`).join(', ');
}
