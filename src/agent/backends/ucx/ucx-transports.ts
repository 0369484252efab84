// Which of its transports UCX may use, as its variable UCX_TLS says.

/** True if one of them is allowed; all are where nothing is said. */
export function mayUse(...names: readonly string[]): boolean {
  const said = process.env['UCX_TLS'] ?? 'all';
  const listed = said
    .replace(/^\^/, '')
    .split(',')
    .map((name) => name.trim());
  // What a name leaves out may have other names: one of them is enough.
  if (said.startsWith('^')) return !listed.some((name) => names.includes(name));
  return listed.some((name) => name === 'all' || names.includes(name));
}
