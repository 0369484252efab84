// The documentation site: its pages stand in site/pages, which scripts/site.mjs makes.
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vitepress';

const root = fileURLToPath(new URL('../..', import.meta.url));
/** Menus that the script has made from docs/README.md and the API pages. */
const menus = JSON.parse(readFileSync(`${root}site/pages/menus.json`, 'utf8'));

export default defineConfig({
  title: 'weftline',
  description: 'Expert-parallel communication for mixture-of-experts models',
  srcDir: `${root}site/pages`,
  outDir: `${root}build/site`,
  cacheDir: `${root}build/site-cache`,
  cleanUrls: false,
  // A page that is linked and is not there fails the build.
  ignoreDeadLinks: false,
  markdown: { html: false, languageAlias: { cuda: 'cpp' } },
  themeConfig: {
    nav: [
      { text: 'Guides', link: '/guides/project-setup' },
      { text: 'API', link: '/api/' },
      { text: 'Changelog', link: '/CHANGELOG' },
    ],
    sidebar: menus,
    outline: [2, 3],
    search: { provider: 'local' },
    socialLinks: [{ icon: 'github', link: 'https://github.com/weftline/weftline' }],
  },
});
