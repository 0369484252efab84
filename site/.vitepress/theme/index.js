// VitePress's theme without its fonts: pages take those of the reader's system, and load nothing from elsewhere.
export { default } from 'vitepress/theme-without-fonts';
