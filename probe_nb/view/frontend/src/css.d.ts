/** esbuild hands a stylesheet over as its text. */
declare module "*.css" {
  const text: string;
  export default text;
}
