// Ranks in messages.

/** "rank 3", "ranks 1, 2, 3", or "Rank 3" where a sentence begins; long lists are cut. */
export function rankList(ranks: readonly number[], word: 'rank' | 'Rank' = 'rank'): string {
  const shown = ranks.slice(0, 16).join(', ');
  const more = ranks.length > 16 ? ` and ${ranks.length - 16} more` : '';
  return `${word}${ranks.length === 1 ? '' : 's'} ${shown}${more}`;
}
